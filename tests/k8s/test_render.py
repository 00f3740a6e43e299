"""The renderer of the tests agrees with Kustomize, and refuses unsupported features."""

import shutil
import subprocess

import pytest
import yaml

from tests.k8s.conftest import FOLDERS, K8S
from tests.k8s.render import NotKnown, render


def write(folder, kustomization, **files):
    for name, text in {"kustomization": kustomization, **files}.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("part", ["configMapGenerator", "components", "namePrefix", "commonLabels", "replacements"])
def test_unsupported_kustomize_features_are_refused(tmp_path, part):
    with pytest.raises(NotKnown, match=part):
        render(write(tmp_path, f"resources: []\n{part}: []\n"))


DEPLOYMENT = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: one}\nspec: {replicas: 1, list: [1, 2]}\n"


def test_a_merged_list_of_a_built_in_kind_is_refused_because_kustomize_joins_it_by_keys(tmp_path):
    change = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: one}\nspec: {list: [3]}\n"
    folder = write(tmp_path, "resources: [one.yaml]\npatches: [{path: change.yaml}]\n", one=DEPLOYMENT, change=change)
    with pytest.raises(NotKnown, match=r"spec\.list"):
        render(folder)


def test_a_patch_without_a_target_is_refused(tmp_path):
    change = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: other}\nspec: {replicas: 2}\n"
    folder = write(tmp_path, "resources: [one.yaml]\npatches: [{path: change.yaml}]\n", one=DEPLOYMENT, change=change)
    with pytest.raises(NotKnown, match="other"):
        render(folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_rendered_as_kustomize_renders_it(folder, rendered):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH: the renderer is not compared with Kustomize")
    done = subprocess.run(["kubectl", "kustomize", K8S / folder], capture_output=True, text=True, check=True)

    def sorted_by_name(objects):
        return sorted(
            objects, key=lambda one: (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        )

    assert sorted_by_name(rendered(folder)) == sorted_by_name(yaml.safe_load_all(done.stdout))
