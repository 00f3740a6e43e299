"""Commands whose reader closes the pipe, such as `sluice ... | head`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.run.test_changed_limit import recipe, run

__all__ = ["recipe"]

GONE = 141


def ended(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command whose output is not read."""
    read, pipe = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-m", *command],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": ""} | environment,
            check=False,
        )
    finally:
        os.close(pipe)


@pytest.mark.parametrize(
    "command",
    [
        ("tasks", "--help"),
        ("tasks", "extract", "--help"),
        ("tasks.demo", "--help"),
        ("tasks.demo", "status"),
        ("tasks.filters.pretrained",),
    ],
    ids=" ".join,
)
def test_a_command_with_a_closed_stdout_ends_silently(command: tuple[str, ...], tmp_path: Path) -> None:
    models = os.environ.get("SLUICE_MODELS", str(Path(__file__).parents[3] / ".sluice" / "models"))
    found = ended(*command, SLUICE_HOME=str(tmp_path), SLUICE_MODELS=models)
    assert (found.returncode, found.stderr) == (GONE, "")


def test_stage_and_inspection_commands_end_without_a_traceback(recipe) -> None:
    run(recipe, "dev")
    named = ("--recipe", recipe.text)
    for command in (["what-if"], ["consolidate"]):
        found = ended("tasks", *command, *named)
        assert found.returncode == GONE, (command, found.stderr)
        assert "Traceback" not in found.stderr
        assert "Broken" not in found.stderr
    found = ended("tasks", "ledger", *named, PYTHONUNBUFFERED="1")
    assert (found.returncode, found.stderr) == (GONE, "")
    pipeline = f'{sys.executable} -m tasks ledger --recipe "$RECIPE" demo/documents@dev | head -n 1'
    environment = os.environ | {"RECIPE": recipe.text}
    head = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True, env=environment, check=True)
    assert (head.stdout, head.stderr) == ("{\n", "")


def test_any_other_broken_pipe_is_an_error() -> None:
    program = (
        "import os\nfrom tasks.core.terminal import handling_broken_pipe\n"
        "def command():\n    read, write = os.pipe()\n    os.close(read)\n    os.write(write, b'x')\n"
        "handling_broken_pipe(command)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "BrokenPipeError" in found.stderr
