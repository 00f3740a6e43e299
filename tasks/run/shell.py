"""Command line: `sluice <stage> --recipe R` runs a stage as an operator does; other commands read artifacts.

`sluice` and `python -m tasks` are the same. The commands are in `tasks.run.commands`, whose modules are found like
stages. The command line is also the first process of a pod, where it runs below an init process (`tasks.run.pid1`).
"""

import argparse
import gc
import importlib
import os
import pkgutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from tasks.core.config import nearest
from tasks.core.errors import InputError, SluiceError
from tasks.core.terminal import handling_broken_pipe
from tasks.run import commands
from tasks.run.catalogue import PARTS, STAGES, stages_of
from tasks.run.commands.command import Command
from tasks.run.commands.stages import stage_commands
from tasks.run.pid1 import fork_below_init

_COMPLETION = "_ARGCOMPLETE"
"""Environment variable that a shell sets when it asks for completions (argcomplete)."""


def enter() -> int:
    """Runs the command line, as the first process of a pod or from a shell; returns the exit status."""
    fork_below_init()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    status = handling_broken_pipe(main)
    # The process is about to end, and a last garbage collection would take a twentieth of the time of a crawl. DuckDB's
    # bindings report every object that is not collected, so with DuckDB it is not skipped.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return status


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status, which operators read from pods.

    0: done. 1 of `audit`: something is present; 1 of other commands: a retry may succeed. 2: a permanent error. 143:
    stopped by a signal, and 137: killed when memory was exhausted; after both, a retry resumes the work.
    """
    try:
        options = _options(sys.argv[1:] if arguments is None else arguments)
        # Not imported before the init process and its handlers are there.
        from tasks.core.open_files import raise_limit
        from tasks.run.runner import logging_to_stderr

        raise_limit()
        with logging_to_stderr():
            return int(options.run(options) or 0)
    except SluiceError as error:
        print("\n".join(f"sluice: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code


def groups() -> Iterator[tuple[str, Sequence[Command]]]:
    """Yields the title and the commands of each module of `tasks.run.commands` that declares them."""
    for found in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        module = importlib.import_module(found.name)
        if hasattr(module, "COMMANDS"):
            yield module.TITLE, module.COMMANDS


def _options(arguments: list[str]) -> argparse.Namespace:
    """Parses the command line; raises InputError for an unknown command, with the nearest one."""
    found = dict(groups())
    parser = argparse.ArgumentParser(
        prog="sluice",
        usage="sluice COMMAND --recipe RECIPE [options]; sluice COMMAND --help",
        description=_overview(found),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added = parser.add_subparsers(required=True, metavar="command", help=argparse.SUPPRESS, prog="sluice")
    for command in [*stage_commands(), *(command for group in found.values() for command in group)]:
        command.add_to(added)
    if _COMPLETION in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in added.choices:
        raise InputError(f'there is no stage or command "{arguments[0]}"', nearest(arguments[0], added.choices))
    return parser.parse_args(arguments)


def _overview(found: Mapping[str, Sequence[Command]]) -> str:
    """Returns the commands by group, then the stages by DAG, in 100 columns."""
    dags = dict.fromkeys([*PARTS, *(stage.dag for stage in STAGES.values())])
    parts = [
        *("\n".join([title, *(f"  {one.name:15} {one.help}" for one in group)]) for title, group in found.items()),
        "run one stage\n"
        + "\n".join(
            textwrap.fill(" ".join(stages_of(dag)), 98, initial_indent=f"  {dag:15} ", subsequent_indent=" " * 18)
            for dag in dags
        ),
    ]
    return "\n".join(parts)
