"""Shell: `python -m tasks <stage> --recipe R` runs a stage as the operator does; other commands read artifacts.

Each command imports what it needs when it runs: the process of a stage pays for no other.

The shell is also the first process of a pod. The kernel gives PID 1 no default action for a signal, so a stage that is
PID 1 would ignore SIGTERM wherever it has no handler, and the pod would occupy its GPUs for the whole grace period;
orphans become its children, and stay zombies. So it forks before any slow import: the child runs the command with the
default actions of signals; the parent forwards signals, reaps children and only waits. A child with nothing to save
ends on SIGTERM immediately, which is safe: parts are committed whole.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tasks.core.errors import InputError, SluiceError
from tasks.core.terminal import handling_broken_pipe
from tasks.run.catalogue import STAGES
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.takedown import VERSION_FORMAT, dated

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

Ask = Callable[["Recipe", "Store", argparse.Namespace], None]
Command = Callable[[str, str, Ask], argparse.ArgumentParser]
_HOSTS = 20
_ROWS = 20
_KEPT = 2
_SLUICE = "sluice"

_FIELDS = ("urls", "domains", "documents", "lift")

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
AWAITED = {*FORWARDED, signal.SIGCHLD}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def enter() -> int:
    """Runs the command line as the first process of a pod, or below a shell; returns the exit status."""
    fork_below_init()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    status = handling_broken_pipe(main)
    # The process ends: a last collection of live objects would take a twentieth of a crawl's time. Not with DuckDB: its
    # bindings report every object that is left.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return status


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    0 done; 1 of `audit`: something is present; 2 a permanent error; 143 stopped by a signal, 137 killed when memory was
    exhausted: both can be resumed; another status: an error that a retry may overcome. Operators read these from pods.
    """
    options = _parser().parse_args(arguments)
    from tasks.run.runner import logging_to_stderr

    try:
        with logging_to_stderr():
            return int(options.run(options) or 0)
    except SluiceError as error:
        print("\n".join(f"sluice: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks", description="Run a stage, trace a page, read the ledger.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, stage in STAGES.items():
        command = _command(commands, name, f"run the stage that writes {stage.output}", _run)
        command.set_defaults(stage=name, member="")
        command.add_argument("--source-version", help="version of inputs that are missing at --version")
        command.add_argument("--parent-key", default="", help="MLflow: the parent run (dag id/run id)")
        command.add_argument("--dask", action="store_true", help="map parts over the cluster of [place.dask]")
        if name == "takedown":
            add_takedown_arguments(command)
        if stage.mapped:
            command.add_argument("--member", required=True, help="which member, such as p0 or arm-0-seed-1")
    trace = _command(commands, "trace", "page to training steps and checkpoints, or step to pages", _trace)
    trace.add_argument(
        "what",
        help="a URL, a document id, domain:<name>, step:<number> of a checkpoint, or tuned:<number> of a fine-tuning",
    )
    trace.add_argument("--all", action="store_true", help="show all documents of a domain, all sequences of a step")
    trace.add_argument("--json", action="store_true", help="print JSON")
    explain = _command(commands, "explain", "text of a model to the pages it stands in, and their steps", _explain)
    explain.add_argument("text", help="what the model wrote, or any text; - reads standard input")
    explain.add_argument("--min-tokens", type=int, help="shortest span that counts; default: 8")
    explain.add_argument("--json", action="store_true", help="print JSON")
    near = _command(commands, "similar", "near copies of a text among the documents of a version", _similar)
    near.add_argument("text", metavar="FILE", help="a file with the text; - reads standard input")
    near.add_argument("--jaccard", type=float, help="least similarity, 0 to 1; default: that of the version's dedup")
    near.add_argument("--most", type=int, default=20, help="copies to show; default: 20")
    near.add_argument("--json", action="store_true", help="print JSON")
    add_crawl_commands(partial(_asking, commands))
    look = _command(commands, "inspect", "what a token shard, a sequence or a step's batch contains", _inspect)
    look.add_argument("what", help="name of a shard, a sequence as source:number, or step:<number>")
    look.add_argument("--json", action="store_true", help="print JSON")
    plan = _command(commands, "plan", "what the training will take, and how true that was", _plan)
    plan.add_argument("--model", default="", help="config.json of another model to plan the training of")
    plan.add_argument("--json", action="store_true", help="print JSON")
    export = _command(commands, "export", "write the token shards for another trainer, or the model", _export)
    export.add_argument("format", choices=("megatron", "webdataset", "huggingface", "model", "gguf", "adapter"))
    export.add_argument("out", help="the folder to make")
    export.add_argument("--tuned", action="store_true", help="the fine-tuned model of the version (model, gguf)")
    audit = _command(commands, "audit", "list all takedowns, and prove that what is current is free of them", _audit)
    audit.add_argument("--json", action="store_true", help="print JSON")
    ledger = _command(commands, "ledger", "list artifacts, or one with what it was made from", _ledger)
    ledger.add_argument("address", nargs="?", help="name@version")
    what_if = _command(commands, "what-if", "the funnel under other limits, without measuring again", _what_if)
    what_if.add_argument("--source-version", default="", help="version of inputs that are missing at --version")
    what_if.add_argument("--examples", type=int, default=5, help="documents to show that would change side, each way")
    _command(commands, "sync", "send MLflow what it missed while it was down", _sync)
    text = "list annotators, filters and parsers, with the package that each comes from"
    commands.add_parser("filters", help=text, description=text).set_defaults(run=_filters)
    return parser


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.add_argument("--recipe", required=True, help="name in dags/recipes, path of a .toml file, or JSON text")
    command.add_argument("--version", default="", help="version of the artifacts; default: the recipe's")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field, as in TOML")
    command.set_defaults(run=run)
    return command


def _asking(commands: Any, name: str, text: str, ask: Ask) -> Any:
    def run(options: argparse.Namespace) -> None:
        from tasks.run.runner import open_store

        recipe = _recipe(options)
        ask(recipe, open_store(recipe), options)

    return _command(commands, name, text, run)


def _recipe(options: argparse.Namespace) -> Any:
    from tasks.run.recipe import find_recipe

    recipe = find_recipe(options.recipe)
    return recipe.override(dict(_override(text) for text in options.set)) if options.set else recipe


def _asked(options: argparse.Namespace) -> "tuple[Store, str, str]":
    """Returns the store of a command's recipe, the recipe's name, and the version."""
    from tasks.run.runner import open_store

    recipe = _recipe(options)
    return open_store(recipe), recipe.name, options.version or recipe.version


def _override(text: str) -> tuple[str, Any]:
    import tomllib

    key, _, value = text.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _run(options: argparse.Namespace) -> None:
    from tasks.run.place import expand_env
    from tasks.run.runner import join_stage, run_stage
    from tasks.run.tracking import TrackingContext
    from tasks.trainer.launch.gang import node_of

    recipe, version = _recipe(options), options.version
    if options.stage == "takedown":
        version, request = takedown_overrides(options)
        recipe = recipe.override(request)
    run = {"version": version, "source_version": options.source_version, "member": options.member}
    if node_of():
        join_stage(recipe, options.stage, **run)
        return
    tracking = TrackingContext(expand_env(recipe.place.mlflow), recipe.name, options.parent_key)
    result = run_stage(recipe, options.stage, **run, on_dask=options.dask, tracking=tracking)
    print(json.dumps(result.to_json()))


def _trace(options: argparse.Namespace) -> None:
    from tasks.run.trace.text import render
    from tasks.run.trace.trace import trace

    found = trace(*_asked(options), options.what, options.all)
    print(json.dumps(found.to_json(), indent=1, default=str) if options.json else render(found))


def _explain(options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import MIN_TOKENS, explain
    from tasks.run.trace.text import render_explanation

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if options.text == "-" else options.text
    least = MIN_TOKENS if options.min_tokens is None else options.min_tokens
    found = explain(*_asked(options), text, least)
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else render_explanation(found))


def _similar(options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import similar

    try:
        raw = sys.stdin.buffer.read() if options.text == "-" else Path(options.text).read_bytes()
    except OSError as error:
        raise InputError(f"{options.text} cannot be read ({error.strerror})", "name a text file, or -") from None
    found = similar(*_asked(options), raw.decode("utf-8", "replace"), options.jaccard, options.most)
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else found.text())


def _inspect(options: argparse.Namespace) -> None:
    from tasks.run.trace.inspect import inspect

    found = inspect(*_asked(options), options.what)
    print(json.dumps(found.to_json(), indent=1) if options.json else found.text())


def _plan(options: argparse.Namespace) -> None:
    from tasks.run.forecast import plan
    from tasks.run.runner import open_store

    recipe = _recipe(options)
    found = plan(recipe, open_store(recipe), options.version or recipe.version, options.model)
    print(json.dumps(found.to_json(), indent=1) if options.json else found.text())


def _what_if(options: argparse.Namespace) -> None:
    from tasks.core.errors import RecipeError
    from tasks.run.forecast import compare
    from tasks.run.recipe import find_recipe
    from tasks.run.runner import open_store

    section = "consolidate."
    if foreign := [text for text in options.set if not text.startswith(section)]:
        remedy = f"name fields of [{section[:-1]}], or run the stages again"
        raise RecipeError(f"{foreign[0]} is no setting of {section[:-1]}", remedy)
    recipe = find_recipe(options.recipe)
    values = dict(_override(text.removeprefix(section)) for text in options.set)
    versions = (options.version or recipe.version, options.source_version)
    print(compare(open_store(recipe), recipe.name, recipe.of(ConsolidateConfig), values, *versions, options.examples))


def _export(options: argparse.Namespace) -> None:
    from tasks.run.export import MODEL_FORMATS, export, export_model

    request = (*_asked(options), options.format, options.out)
    print(export_model(*request, tuned=options.tuned) if options.format in MODEL_FORMATS else export(*request))


def _audit(options: argparse.Namespace) -> int:
    """Returns 1 where something current has what is taken down."""
    from tasks.run.runner import open_store
    from tasks.run.trace.audit import audit

    recipe = _recipe(options)
    found = audit(open_store(recipe), recipe.name)
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else found.text())
    return 0 if found.absent else 1


def _ledger(options: argparse.Namespace) -> None:
    from tasks.core.ledger import Ledger
    from tasks.run.runner import open_store

    ledger = Ledger(open_store(_recipe(options)))
    if not options.address:
        for artifact in ledger:
            record = artifact.record
            when = f"{record.finished:%Y-%m-%d %H:%M:%S}"
            print(f"{when}  {record.fingerprint[:12]}  {record.rows_out:>9,}  {record.artifact}")
        return
    print(ledger.find(options.address).record.model_dump_json(indent=1, exclude={"parts"}))
    for title, lines in (
        ("made from", ledger.ancestors(options.address)),
        ("used by", ledger.descendants(options.address)),
        ("drift", ledger.drift(options.address)),
    ):
        print(f"{title}: {', '.join(lines) or 'nothing'}")


def _sync(options: argparse.Namespace) -> None:
    from tasks.core.errors import TransientError
    from tasks.run.runner import open_store
    from tasks.run.tracking.send import send_messages, waiting_messages

    store = open_store(_recipe(options))
    try:
        sent = send_messages(store)
    except Exception as error:
        raise TransientError(
            f"MLflow does not take {waiting_messages(store)} waiting runs ({error})", "start it and run again"
        ) from None
    print(f"{sent} sent, {waiting_messages(store)} waiting")


def _filters(_options: argparse.Namespace) -> None:
    print("\n".join(_listing()))


def _listing() -> Iterator[str]:
    """Yields a line for each annotator, filter and parser that recipes can name; of one that is unusable the cause."""
    from tasks.core import extensions
    from tasks.core.config import Problems
    from tasks.filters import catalogue
    from tasks.filters.base import Annotator, Filter
    from tasks.stages.extract.parser import find_parser, package_of, parser_names

    yield _row("name", "is", "comes from")
    for name in catalogue.filter_names():
        try:
            module, package = extensions.module_of(extensions.FILTERS, "filter", name, catalogue.CATALOGUE)
            roles = ["annotator"] if catalogue.defined_in(module, Annotator) else []
            roles += ["filter"] if catalogue.defined_in(module, Filter) else []
            yield _row(name, " and ".join(roles) or "nothing", package or _SLUICE)
        except Problems as problems:
            yield _row(name, "not usable", str(problems))
    for name in parser_names():
        try:
            kinds = ", ".join(find_parser(name, {}).media_types)
            yield _row(name, f"parser of {kinds or 'files'}", package_of(name) or _SLUICE)
        except Problems as problems:
            yield _row(name, "not usable", str(problems))


def _row(name: str, kind: str, package: str) -> str:
    return f"{name:20} {kind:30} {package}"


def add_crawl_commands(command: Command) -> None:
    """Adds the commands; `command` makes one of its name, its help and what it runs."""
    far = command("status", "how far a crawl cycle is: partitions, queues, rates and back-offs", _status)
    far.add_argument("--hosts", type=int, default=_HOSTS, help=f"hosts shown at most; default: {_HOSTS}")
    far.add_argument("--json", action="store_true", help="print JSON")
    reason = command("why", "why URLs are crawled, or are not", _why)
    reason.add_argument(
        "urls",
        nargs="+",
        metavar="url",
        help="as you would type it into a browser; without a scheme https, unless only http is known; @FILE reads one "
        "per line, - standard input",
    )
    reason.add_argument("--json", action="store_true", help="print JSON; of several URLs an array")
    _add_crawldb(command("crawldb", "what the crawl DB holds: counts of URLs, or the URLs themselves", _crawldb))
    old = command("prune", "remove old generations of the crawl DB; without --remove only say which", _prune)
    old.add_argument("--keep", type=int, default=_KEPT, help=f"newest generations that stay; default: {_KEPT}")
    old.add_argument("--older-than", type=int, default=0, metavar="DAYS", help="remove none that is younger")
    old.add_argument("--remove", action="store_true", help="remove the files")
    old.add_argument("--json", action="store_true", help="print JSON")


def _add_crawldb(look: argparse.ArgumentParser) -> None:
    for name, text in (
        ("status", "such as db_gone; may be given several times, as may the next three"),
        ("reason", "such as http_404"),
        ("host", "host, host:port or *.domain, as in the hosts file"),
        ("kind", "page, sitemap or feed"),
    ):
        look.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    look.add_argument("--url", default="", metavar="PATTERN", help="pattern of whole URLs, with * and ?")
    look.add_argument("--due", action="store_true", help="only what is due")
    # As in `tasks.stages.crawl.query`, which is heavy to import.
    tops = ("hosts", "domains", "reasons", "statuses", "kinds", "depths")
    look.add_argument("--top", default="", choices=tops, help="count by it, the most frequent first")
    look.add_argument("--limit", type=int, default=_ROWS, help=f"rows shown at most; default: {_ROWS}")
    look.add_argument("--json", action="store_true", help="print JSON")


def _status(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.status import render, status

    found = status(store, recipe.name, options.version)
    _print(found, options.json, lambda: render(found, options.hosts))


def _why(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.why import render, verdict, why_all

    urls = list(_lines(options.urls))
    asked = why_all(store, recipe.name, recipe.of(CrawlConfig), urls, options.version)
    if len(urls) == 1:
        (found,) = asked
        _print(found, options.json, lambda: render(found))
    elif options.json:
        _print(list(asked), True, str)
    else:
        for found in asked:
            print(verdict(found), flush=True)


def _crawldb(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.inject import member
    from tasks.stages.crawl.query import Filters, query, render

    filters = Filters(options.status, options.reason, options.host, options.kind, options.url, options.due)
    top = options.top or ("statuses" if filters == Filters([], [], [], []) else "")
    partitions = [member(number) for number in range(recipe.of(CrawlConfig).partitions)]
    found = query(store, recipe.name, partitions, filters, top=top, most=max(1, options.limit), version=options.version)
    _print(found, options.json, lambda: render(found))


def _prune(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from datetime import timedelta

    from tasks.stages.crawl.storage import crawldb

    rule = f"--keep {options.keep} --older-than {options.older_than}"
    found = crawldb.generations(store, recipe.name, options.keep, timedelta(days=options.older_than))
    rows: list[dict[str, Any]] = []
    verb = "removed" if options.remove else "would be removed"
    for one in found:
        if options.remove and not one.keep_reason:
            crawldb.remove(one, rule)
        about = {"version": one.version, "finished": one.finished, "bytes": one.bytes}
        rows.append({**about, "stays": one.keep_reason, "removed": bool(options.remove and not one.keep_reason)})
    lines = (
        f"{row['version']}  {row['finished']:%Y-%m-%d %H:%M}  {row['bytes'] / 1e6:,.1f} MB  "
        + (f"stays: {row['stays']}" if row["stays"] else verb)
        for row in rows
    )
    _print(rows, options.json, lambda: "\n".join(lines) or f"{recipe.name} has no crawl DB in {store.root}")


def _lines(given: Iterable[str]) -> Iterator[str]:
    for one in given:
        if one != "-" and not one.startswith("@"):
            yield one
            continue
        try:
            with open(0 if one == "-" else one[1:], encoding="utf-8", closefd=one != "-") as file:
                yield from filter(None, map(str.strip, file))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{one} cannot be read ({error})", "correct the path, or save it as UTF-8") from None


def _print(found: Any, as_json: bool, text: Callable[[], str]) -> None:
    sys.stdout.write((json.dumps(found, indent=1, default=str, ensure_ascii=False) if as_json else text()) + "\n")


def add_takedown_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a request."""
    for name, field, what in (
        ("url", "urls", "a page"),
        ("domain", "domains", "a host name, with all names below it"),
        ("document", "documents", "a document id, 32 hex digits"),
        ("lift", "lift", "a URL, domain or document id that is no longer taken down"),
    ):
        help_text = f"{what}; may be given several times, @FILE reads one per line"
        command.add_argument(f"--{name}", action="append", default=[], dest=field, metavar=name.upper(), help=help_text)
    command.add_argument("--reason", default="", help="why, in words; stays on record")
    command.add_argument("--requested-by", default="", help="who asked for it; stays on record")
    command.add_argument(
        "--from-crawl", action="store_true", help="also what the newest crawl cycle lists as withdrawn"
    )
    command.add_argument("--date", default="", help="moment of the request, ISO 8601; default: now")


def takedown_overrides(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns the version, by default the date of the request, and the overrides of the recipe; raises InputError."""
    try:
        moment = datetime.fromisoformat(options.date) if options.date else datetime.now(UTC)
    except ValueError:
        raise InputError(f'--date "{options.date}" is no date', "write it as 2026-11-21T09:30:00+00:00") from None
    fields = {f"takedown.{field}": _listed_lines(getattr(options, field)) for field in _FIELDS}
    words = {"takedown.reason": options.reason, "takedown.requested_by": options.requested_by}
    version = options.version or moment.strftime(VERSION_FORMAT)
    return version, {**fields, **words, "takedown.from_crawl": options.from_crawl, **dated(moment)}


def _listed_lines(given: list[str]) -> list[str]:
    return [line for one in given for line in (_read_lines(one[1:]) if one.startswith("@") else [one])]


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})", "correct the path, or save it as UTF-8") from None


def fork_below_init() -> None:
    """Forks where this process is PID 1 or ignores SIGTERM: the parent becomes the init process, the child returns.

    Returns immediately elsewhere. The parent never returns: it exits with the child's status, 128 + signal if the child
    was killed, and ends all remaining child processes before.
    """
    if os.getpid() != 1 and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        return
    # A blocked signal stays pending until `sigwait`, even if it is ignored or this is PID 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stage = os.fork()
    if stage:
        _watch(stage)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def _watch(stage: int) -> NoReturn:
    while True:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            os.kill(stage, number)
            continue
        status = _reap(stage)
        if status is not None:
            _end_orphans()
            os._exit(status if status >= 0 else 128 - status)


def _reap(stage: int) -> int | None:
    """Reaps every child that has ended; returns the exit code of `stage` if it is among them (negative: a signal)."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == stage:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_orphans() -> None:
    """Kills the child processes that the stage has left, such as pool workers that wait for work."""
    import psutil

    with contextlib.suppress(ChildProcessError):
        while True:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            os.waitpid(-1, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
