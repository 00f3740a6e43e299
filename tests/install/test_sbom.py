"""`make sbom`: the bill of materials names each package of the lock once, and is the same each time; its signature."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.install.stranger import NO_REGISTRY, ROOT


def make(*words: object) -> None:
    """Runs make; the environment of the tests is not made again."""
    command = ["make", "--assume-old=.venv/.testable", *(str(word) for word in words)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if made.returncode and NO_REGISTRY.search(made.stderr):
        pytest.skip("no package registry answers")
    assert made.returncode == 0, made.stderr


@pytest.mark.soak
def test_the_bill_of_materials_names_the_packages_of_the_lock_and_is_reproducible(tmp_path) -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    locked = sorted(re.fullmatch(r"(\S+?)(?:\[.*\])?==(\S+)(?: ;.*)?", line).groups() for line in lines if "==" in line)
    bodies = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        make("sbom", f"DIST={folder}")
        bodies.append((folder / "sluice.cdx.json").read_text())
    assert bodies[0] == bodies[1]
    bill = json.loads(bodies[0])
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "sluice")
    assert sorted((one["name"], one["version"]) for one in bill["components"]) == locked
    assert {one["purl"] for one in bill["components"]} == {
        f"pkg:pypi/{name.lower()}@{version}" for name, version in locked
    }


@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen on this machine")
def test_a_wheel_and_its_bill_of_materials_are_signed_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    key, signers = tmp_path / "key", tmp_path / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ann@example.org", "-f", key], check=True)
    signers.write_text(f"ann@example.org {key.with_suffix('.pub').read_text()}")

    def is_valid(file: Path) -> bool:
        signature = f"{file}.sig"
        command = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "ann@example.org", "-n", "file", "-s", signature]
        with file.open() as content:
            return subprocess.run(command, stdin=content, capture_output=True).returncode == 0

    for _ in range(2):  # a second time over the first
        make("wheel", f"DIST={tmp_path / 'dist'}", f"SIGN={key}")
    signed = sorted(path.with_suffix("") for path in (tmp_path / "dist").glob("*.sig"))
    assert [path.suffix for path in signed] == [".whl", ".json"]
    assert all(is_valid(path) for path in signed)
    for path in signed:
        path.write_bytes(path.read_bytes() + b" ")
    assert not any(is_valid(path) for path in signed)
