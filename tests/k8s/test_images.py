"""The Dockerfiles, checked without Docker: pinned, not root, cached well, nothing missing.

The build itself is not tested. Checked are: every copied file exists and passes .dockerignore, the packages they
install are all in the lock, and the wheel has its folders (a soak test builds it).
"""

import fnmatch
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.k8s.conftest import K8S
from tests.k8s.dockerfile import instructions, may_lock, stages

ROOT = K8S.parent
IMAGES = ("airflow", "worker", "trainer")
FILES = {
    **{name: K8S / "images" / f"{name}.Dockerfile" for name in (*IMAGES, "existing")},
    "store": K8S / "overlays/kind/store.Dockerfile",
}


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_bases_are_pinned_to_a_patch_version(path):
    names = {name for name, _ in stages(path)}
    given = dict(rest.split("=", 1) for word, rest in instructions(path) if word == "ARG" and "=" in rest)
    bases = [rest.split(" AS ")[0] for word, rest in instructions(path) if word == "FROM"]
    bases = [given.get(base.strip("${}"), base) for base in bases]
    outside = [base for base in bases if base not in names]
    assert outside
    assert all(re.fullmatch(r"[a-z/.-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base) for base in outside)


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"existing"}))
def test_images_run_as_a_numeric_non_root_user(name):
    users = [rest for word, rest in stages(FILES[name])[-1][1] if word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


IN_IMAGE = """
import os, sys
from pathlib import Path
from tests.k8s.dockerfile import become, enter
image = enter(Path(sys.argv[1]), Path(sys.argv[2]), {})
become(int(sys.argv[3]), int(sys.argv[4]))
os.execve(sys.executable, [sys.executable, "-c", *sys.argv[5:]], {**image.env, "PYTHONPATH": os.environ["PYTHONPATH"]})
"""
LIBRARIES = """
import getpass, sys, tempfile
from pathlib import Path
import matplotlib
places = [Path.home(), Path(tempfile.gettempdir()), Path(matplotlib.get_cachedir())]
if sys.argv[1] == "trainer":
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    places.append(Path(default_cache_dir()))
for place in places:
    place.mkdir(parents=True, exist_ok=True)
    (place / "made").touch()
print(getpass.getuser())
"""


@pytest.mark.parametrize("user", [(50000, 50000), (1000660000, 0)], ids=["of-the-image", "of-the-cluster"])
@pytest.mark.parametrize("name", IMAGES)
def test_libraries_find_a_user_name_and_a_home_on_a_read_only_root(name, user, tmp_path):
    if not may_lock():
        pytest.skip("mount namespaces are not allowed here (needs root on Linux)")
    if any(Path(place).resolve().is_relative_to("/tmp") for place in (K8S, sys.prefix)):
        pytest.skip("checkout or environment is below /tmp, which is empty in the image")
    program = [sys.executable, "-c", IN_IMAGE, FILES[name], tmp_path, *map(str, user), LIBRARIES, name]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "sluice"
    assert "Read-only file system" not in done.stderr


def test_the_trainers_image_has_the_compiler_without_which_a_training_is_not_compiled():
    """[train] compile is on by default on GPUs, but only with a C compiler and the headers of Python and libc."""
    body = stages(FILES["trainer"])[-1][1]
    [installed] = [rest for word, rest in body if word == "RUN" and "apt-get install" in rest]
    assert {"gcc", "libc6-dev"} <= set(installed.split())


@pytest.mark.parametrize("name", IMAGES)
def test_the_user_of_an_image_has_a_line_in_passwd(name):
    """Without the variable USER, too: `kubectl debug` and ssh start without the environment of the image."""
    body = stages(FILES[name])[-1][1]
    [user] = [rest for word, rest in body if word == "USER"]
    [written] = [rest for word, rest in body if word == "RUN" and "/etc/passwd" in rest]
    assert re.search(rf"'(\w+):x:{user}::/tmp:", written)


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_only_package_managers_download_and_no_secret_is_baked_in(path):
    for word, rest in instructions(path):
        assert word != "ADD"
        assert not re.search(r"\b(curl|wget)\b", rest)
        if word in ("ENV", "ARG"):
            assert not re.search(r"password|secret|token|_key", rest, re.I)


def ignored(name):
    """Returns whether .dockerignore excludes a file: the last matching rule applies."""
    out = False
    for rule in (ROOT / ".dockerignore").read_text().split("\n"):
        if rule and not rule.startswith("#"):
            pattern = rule.lstrip("!").removeprefix("**/")
            parts = [name, *(name.rsplit("/", up)[0] for up in range(1, name.count("/") + 1)), name.split("/")[-1]]
            if any(fnmatch.fnmatch(part, pattern) for part in parts):
                out = not rule.startswith("!")
    return out


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_every_copied_file_exists_and_is_not_ignored(path):
    for word, rest in instructions(path):
        if word == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert not ignored(source), source


@pytest.mark.parametrize("name", ["airflow", "worker", "existing"])
def test_the_models_stage_has_all_files_needed_to_download_models(name, tmp_path):
    [body] = [body for stage, body in stages(FILES[name]) if stage == "models"]
    for word, rest in body:
        if word == "COPY":
            *sources, folder = rest.split()
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for source in sources:
                shutil.copy(ROOT / source, tmp_path / folder)
    # Imports the code of the stage, in a Python without installed packages.
    alone = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); import tasks.filters.pretrained"]
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_other_files_are_ignored():
    for name in (".git/config", ".env", ".sluice/demo/secrets", "tests/conftest.py", "tasks/__pycache__/x.pyc", "docs"):
        assert ignored(name), name
    assert not ignored("tasks/core/store.py")


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"store"}))
def test_packages_are_installed_before_the_source_so_a_code_change_costs_one_small_layer(name):
    for stage, body in stages(FILES[name]):
        installs = [at for at, (word, rest) in enumerate(body) if word == "RUN" and "--requirement wanted.txt" in rest]
        sources = [
            at for at, (word, rest) in enumerate(body) if word == "COPY" and re.match(r"(tasks|operators)\b", rest)
        ]
        assert not (installs and sources), stage
    final = stages(FILES[name])[-1][1]
    packages, wheel = (
        next(at for at, (_, rest) in enumerate(final) if re.search(words, rest))
        for words in ("from=packages|--requirement", "from=wheel")
    )
    assert packages < wheel


def wanted(name):
    [command] = [rest for word, rest in instructions(FILES[name]) if word == "RUN" and "wanted.py" in rest]
    extras = re.fullmatch(r"python wanted\.py ?([\w ]*) > wanted\.txt", command).group(1).split()
    done = subprocess.run(
        [sys.executable, K8S / "images/wanted.py", *extras], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.splitlines()


def closure(requirements):
    """Returns the normalized names of all packages of these requirements, from installed metadata."""
    found, ahead = set(), [(Requirement(line), "") for line in requirements]
    while ahead:
        requirement, extra = ahead.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for chosen in ("", *requirement.extras):
            if (name, chosen) not in found:
                found.add((name, chosen))
                needs = importlib.metadata.requires(requirement.name) or []
                ahead += [(Requirement(line), chosen) for line in needs]
    return {name for name, _ in found}


@pytest.mark.parametrize("name", IMAGES)
def test_the_lock_pins_everything_that_an_image_installs(name):
    lock = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line
    }
    assert closure(wanted(name)) - lock == set()


def test_each_image_holds_only_what_its_role_needs():
    packages = {name: closure(wanted(name)) for name in IMAGES}
    assert {
        "apache-airflow",
        "apache-airflow-providers-cncf-kubernetes",
        "mlflow",
        "psycopg2-binary",
        "boto3",
    } <= (packages["airflow"])
    assert "torch" in packages["trainer"]
    assert not {"apache-airflow"} & (packages["trainer"] | packages["worker"])
    assert not {"torch"} & packages["worker"]
    # Client, scheduler and workers of Dask must have the same version: one lock, one list.
    assert {"dask", "distributed"} <= packages["airflow"] & packages["worker"]


WITHOUT_TORCH = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("no torch in this image")

sys.meta_path.insert(0, Missing())
from tasks.run.catalogue import STAGES
for stage in STAGES.values():
    try:
        importlib.import_module(stage.module)
    except ImportError as error:
        assert "no torch" in str(error), error
        print(stage.name)
"""

GPU_PODS = """
[place.train]
where = "kubernetes"
[place.kubernetes]
image = "sluice/trainer:0.1.0"
"""
GANG = "nodes = 2\n[promote]\nenabled = true\n"
TUNED = """
[examples]
files = ["/data/instructions.jsonl"]
[finetune]
base = "placed/checkpoint@dev"
steps = 10
[promote_tuned]
enabled = true
"""


def test_every_stage_that_needs_torch_runs_in_an_image_with_torch(recipes, dag_bag):
    recipes("placed", GPU_PODS + GANG)
    recipes("tuned", GPU_PODS + TUNED)
    in_pods = {
        getattr(task, "stage", "") or task.partial_kwargs["stage"]
        for dag in dag_bag().dags.values()
        for task in dag.tasks
        if task.task_type in ("GpuPodOperator", "JobSetOperator")
    }
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True, cwd=ROOT)
    elsewhere = set(done.stdout.split()) - in_pods
    assert in_pods == {
        "canary",
        "confirm",
        "train",
        "evaluate",
        "compare",
        "finetune",
        "evaluate_tuned",
        "compare_tuned",
    }
    assert ("torch" in closure(wanted("airflow"))) == bool(elsewhere), elsewhere


def test_a_base_of_your_own_replaces_the_official_image_and_keeps_its_user_and_environment():
    *_, (_, body) = stages(FILES["existing"])
    first, *rest = body
    assert first == ("FROM", "${BASE}")
    assert ("ARG", "BASE=apache/airflow:3.3.2-python3.11") in instructions(FILES["existing"])
    assert not [line for line in rest if line[0] in ("ENTRYPOINT", "CMD", "USER", "WORKDIR") or "venv" in line[1]]


IN_WHEEL = {"tasks", "operators", "sluice_ui", "sluice_plugin.py", "sluice_dags"}


@pytest.mark.parametrize("path", [FILES[name] for name in (*IMAGES, "existing")], ids=(*IMAGES, "existing"))
def test_the_wheel_is_built_from_all_of_its_folders(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {name.split("/")[0] for name in declared} | {"dags", "hatch_build.py", "pyproject.toml", "README.md"}
    [body] = [body for stage, body in stages(path) if stage == "wheel"]
    assert {source for word, rest in body if word == "COPY" for source in rest.split()[:-1]} == needed


@pytest.mark.soak
def test_the_wheel_has_no_package_with_the_name_of_a_folder_of_dags_or_plugins(tmp_path):
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT],
        capture_output=True,
        text=True,
    )
    if made.returncode and re.search(r"No matching distribution found for hatchling|connection", made.stderr, re.I):
        pytest.skip("pip could not fetch the build backend (hatchling); the wheel was not built")
    assert made.returncode == 0, made.stderr
    [wheel] = tmp_path.glob("sluice-*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == IN_WHEEL
    assert {"tasks/__main__.py", "tasks/stages/consolidate/audit.html", "sluice_ui/static/style.css"} <= names
    dags = {name.removeprefix("sluice_dags/") for name in names if name.startswith("sluice_dags/")}
    expected = [
        path for pattern in ("*.py", "pools.json", "recipes/**/*.toml") for path in (ROOT / "dags").glob(pattern)
    ]
    assert dags == {str(path.relative_to(ROOT / "dags")) for path in expected}
