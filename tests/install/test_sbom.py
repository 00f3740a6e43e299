"""`make sbom`: the bill of materials names each package of the lock once, and is the same each time."""

import json
import re
import subprocess

import pytest

from tests.install.stranger import NO_REGISTRY, ROOT


@pytest.mark.soak
def test_the_bill_of_materials_names_the_packages_of_the_lock_and_is_reproducible(tmp_path) -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    locked = sorted(re.fullmatch(r"(\S+?)(?:\[.*\])?==(\S+)(?: ;.*)?", line).groups() for line in lines if "==" in line)
    bodies = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        # The environment of the tests is not made again.
        command = ["make", "--assume-old=.venv/.testable", "sbom", f"DIST={folder}"]
        made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if made.returncode and NO_REGISTRY.search(made.stderr):
            pytest.skip("no package registry answers")
        assert made.returncode == 0, made.stderr
        bodies.append((folder / "sluice.cdx.json").read_text())
    assert bodies[0] == bodies[1]
    bill = json.loads(bodies[0])
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "sluice")
    assert sorted((one["name"], one["version"]) for one in bill["components"]) == locked
    assert {one["purl"] for one in bill["components"]} == {
        f"pkg:pypi/{name.lower()}@{version}" for name, version in locked
    }
