"""A run over PDF files that is killed resumes at the first part that is missing, and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import end_all
from tests.conftest import run_stage_in
from tests.kills import die_in, times_of
from tests.tasks.stages.extract.made_pdf import IMAGE, SCANNED, image, lines, pdf


def made(folder: Path) -> Artifact:
    """What the stage makes of six files, each with a page that needs OCR, in three parts."""
    (folder / "papers").mkdir(parents=True, exist_ok=True)
    for number in range(6):
        page = lines(50, 700, [f"Line {line} of file {number} says that the door is open." for line in range(8)])
        data = pdf([page, SCANNED], resources=IMAGE, others={1000: image()})
        (folder / "papers" / f"{number}.pdf").write_bytes(data)
    source = {"name": "papers", "kind": "pdf", "path": f"{folder}/papers/*.pdf"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parts": 3})
    return run_stage_in(folder, "tasks.stages.extract.stage", config, kind="extracted")


@pytest.mark.soak
def test_a_killed_run_ends_with_the_same_documents_layouts_and_pages(tmp_path: Path) -> None:
    undisturbed = made(tmp_path / "whole")
    assert {"documents/", "layout/", "pages/", "rejected/"} <= {
        f"{path.split('/')[0]}/" for path in undisturbed.files()
    }
    program = [sys.executable, "-m", __spec__.name, str(tmp_path / "killed")]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "extracted" / "dev"
    before = times_of(artifact, undisturbed.files())
    assert len(before) == 4, "it died behind the first part"
    resumed = made(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    end_all()


if __name__ == "__main__":
    die_in("", 2, folder="/extracted")
    made(Path(sys.argv[1]))
