"""A PDF file that breaks its reader gives one rejected row, and its part continues.

A killed run resumes at the first missing part and writes the same bytes.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import end_idle_children
from tests.conftest import run_stage_in
from tests.kills import die_in, times_of
from tests.tasks.stages.extract.made_pdf import HOSTILE, IMAGE, SCANNED, image, lines, pdf

ALLOWED = {
    *(
        "pdf_damaged",
        "pdf_encrypted",
        "pdf_timeout",
        "pdf_too_many_objects",
        "pdf_too_many_pages",
        "pdf_too_many_chars",
    ),
    *("empty", "needs_ocr", "poison"),
}
# In a separate process, whose only children are those of this stage.
PROGRAM = """
import json, resource, sys
from pathlib import Path
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import end_idle_children
from tests.conftest import run_stage_in

folder = Path(sys.argv[1])
source = {"name": "papers", "kind": "pdf", "path": f"{folder}/*.pdf", "max_file_bytes": 100_000_000}
config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parts": 1})
made = run_stage_in(folder, "tasks.stages.extract.stage", config, max_bad_share=1.0)
end_idle_children()
rows = [row for path in made.files("rejected/") for row in made.table(path).to_pylist()]
kept = [row for path in made.files("documents/") for row in made.table(path).to_pylist()]
print(json.dumps({
    "rejected": [(row["url"], row["reason"]) for row in rows],
    "kept": [row["url"] for row in kept],
    "bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
}))
"""


# One of each kind of end; all 36 take half a minute.
FEW = ("truncated", "password", "own_kids", "million_objects", "million_paths", "bomb_in_bomb", "form_in_itself")


@pytest.fixture(scope="module", params=[FEW, pytest.param(tuple(HOSTILE), marks=pytest.mark.soak)], ids=["few", "all"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Output of the stage for them in one part, between two good files."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    for name in request.param:
        (folder / f"{name}.pdf").write_bytes(HOSTILE[name]())
    good = pdf([lines(50, 700, ["A line of text.", "And another one."])])
    for name in ("0_first", "z_last"):
        (folder / f"{name}.pdf").write_bytes(good)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return {"hostile": request.param, **json.loads(done.stdout.splitlines()[-1])}


def test_each_hostile_file_is_one_rejected_row_and_the_others_are_read(outcome: dict) -> None:
    assert sorted(url for url, _ in outcome["rejected"]) == sorted(
        f"file://papers/{name}.pdf" for name in outcome["hostile"]
    )
    assert {reason for _, reason in outcome["rejected"]} <= ALLOWED
    assert sorted(outcome["kept"]) == ["file://papers/0_first.pdf", "file://papers/z_last.pdf"]


def test_the_process_that_reads_hostile_files_stays_below_a_gigabyte(outcome: dict) -> None:
    assert outcome["bytes"] < 1_000_000_000


def made(folder: Path) -> Artifact:
    """Output of the stage for six files in three parts, each file with a page that needs OCR."""
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
    end_idle_children()


if __name__ == "__main__":
    die_in("", 2, folder="/extracted")
    made(Path(sys.argv[1]))
