"""The command line: an overview on one screen, every command found, completion in shells."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tasks.run import shell
from tasks.run.catalogue import STAGES

ROOT = Path(__file__).parents[3]


def test_the_overview_names_all_commands_and_stages_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        shell.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    words = {word for line in lines for word in line.split()}
    assert words >= {command.name for _, group in shell.groups() for command in group} | STAGES.keys()


def test_no_command_has_the_name_of_a_stage_or_of_another_command() -> None:
    names = [command.name for _, group in shell.groups() for command in group]
    assert len({*names, *STAGES}) == len(names) + len(STAGES)


def test_the_script_is_the_same_command_line() -> None:
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "sluice"
    ].partition(":")
    assert getattr(import_module(module), function) is shell.enter


def test_an_unknown_command_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["trce", "--recipe", "smoke"]) == 2
    assert '"trace"' in capsys.readouterr().err.replace("trce", "")


@pytest.mark.parametrize(("line", "words"), [("sluice tra", {"trace", "train"}), ("sluice trace --j", {"--json"})])
def test_a_shell_completes_commands_and_options(tmp_path: Path, line: str, words: set[str]) -> None:
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "words"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
    }
    subprocess.run([sys.executable, "-m", "tasks"], env=environment, cwd=ROOT, check=True)
    assert words <= {word.strip() for word in (tmp_path / "words").read_text().split("\n")}
