"""Command line: `python -m tasks <stage> --recipe R` runs a stage as an operator does; other commands read artifacts.

Each command imports its modules when it runs, so the process of a stage does not load those of other commands.

The command line is also the first process of a pod, where it runs below an init process (`tasks.run.pid1`).
"""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.config import nearest
from tasks.core.errors import InputError, SluiceError
from tasks.core.open_files import raise_limit
from tasks.core.terminal import handling_broken_pipe
from tasks.run.catalogue import STAGES
from tasks.run.pid1 import fork_below_init
from tasks.run.variants import DAGS, variant_of
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.takedown import VERSION_FORMAT, dated

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.lake import TableCheck
    from tasks.run.recipe import Recipe

StoreCommand = Callable[["Recipe", "Store", argparse.Namespace], int | None]
"""A command on the store of a recipe; returns the exit status, None for 0."""

AddCommand = Callable[[str, str, StoreCommand], argparse.ArgumentParser]
"""Adds a command: its name, its help and its function."""

_HOSTS = 20
_ROWS = 20
_SLUICE = "sluice"

_REQUEST_FIELDS = ("urls", "domains", "documents", "lift")


def enter() -> int:
    """Runs the command line, as the first process of a pod or from a shell; returns the exit status."""
    fork_below_init()
    raise_limit()
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
        from tasks.run.runner import logging_to_stderr

        with logging_to_stderr():
            return int(options.run(options) or 0)
    except SluiceError as error:
        print("\n".join(f"sluice: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code


def _options(arguments: list[str]) -> argparse.Namespace:
    """Parses the command line; raises InputError for an unknown command, with the nearest one."""
    parser, commands = _parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise InputError(f'there is no stage or command "{arguments[0]}"', nearest(arguments[0], commands))
    return parser.parse_args(arguments)


def _parser() -> tuple[argparse.ArgumentParser, Iterable[str]]:
    """Returns the parser, and the names of its commands."""
    parser = argparse.ArgumentParser(prog="python -m tasks", description="Run a stage, trace a page, read the ledger.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, stage in STAGES.items():
        command = _command(commands, name, f"run the stage that writes {stage.output}", _run)
        command.set_defaults(stage=name, member="")
        command.add_argument("--source-version", help="version from which inputs missing at --version are read")
        command.add_argument("--parent-key", default="", help="MLflow: the parent run (dag id/run id)")
        command.add_argument("--dask", action="store_true", help="map parts over the cluster of [place.dask]")
        if name == "takedown":
            add_takedown_arguments(command)
        if stage.dag in DAGS:
            command.add_argument("--variant", default="", help="arm of [[canary.settings]] whose artifact to make")
        if stage.mapped:
            command.add_argument("--member", required=True, help="the member, such as p0 or arm-0-seed-1")
    add = partial(_store_command, commands)
    add_lookup_commands(add)
    add_crawl_commands(add)
    export = add("export", "write the token shards for another trainer, or the model", _export)
    export.add_argument("format", choices=("megatron", "webdataset", "huggingface", "model", "gguf", "adapter"))
    export.add_argument("out", help="the folder to create")
    export.add_argument("--tuned", action="store_true", help="the fine-tuned model of the version (model, gguf)")
    dossier = add("dossier", "what a model was trained on, for an auditor: a folder of pages and JSON", _dossier)
    dossier.add_argument("out", help="the folder to create")
    dossier.add_argument("--provider", default="", help="name of the provider")
    dossier.add_argument("--contact", default="", help="address for questions and complaints")
    dossier.add_argument("--small-firm", action="store_true", help="name 5 %% of the domains, at most 1,000, not 10 %%")
    dossier.add_argument("--traces", type=int, default=20, help="random documents to trace; default: 20")
    dossier.add_argument("--seed", type=int, default=0, help="of their choice")
    importing = add("import-model", "publish a Hugging Face model folder as checkpoint and tokenizer", _import_model)
    importing.add_argument(
        "source", help="a folder with config.json, safetensors files and tokenizer.json, its URL, or hf://owner/name"
    )
    evaluating = add("evaluate-model", "score a model from elsewhere on the recipe's tasks", _evaluate_model)
    evaluating.add_argument("model", help="a folder, its URL, hf://owner/name@revision, or the id of an artifact")
    what_if = _command(commands, "what-if", "the funnel under other limits, without measuring again", _what_if)
    what_if.add_argument("--source-version", default="", help="version from which inputs missing at --version are read")
    what_if.add_argument(
        "--examples", type=int, default=5, help="documents to show whose verdict would change, each way"
    )
    add("cycle", "run all stages that a version does not have yet, then its report", _cycle)
    lake = add("lake", "write the documents of a version into the tables of [place.lake]", _lake)
    lake.add_argument("--json", action="store_true", help="print JSON")
    month = add("month", "what a month brought and cost, what has changed, and what needs a person", _month)
    month.add_argument("--json", action="store_true", help="print JSON")
    rejecting = add(
        "reject", "reject the mixture of a version: the next cycle of canaries does not start from it", _reject
    )
    rejecting.add_argument("--why", default="", help="the reason")
    rejecting.add_argument("--withdraw", action="store_true", help="end the rejection")
    add("sync", "send to MLflow the runs that it missed while it was down", _sync)
    new = commands.add_parser("init", help=(text := "write a recipe for a folder, a file or a site"), description=text)
    new.add_argument("what", help="a folder or file, here or in an object store (s3://bucket/folder/); or a site's URL")
    new.add_argument("--name", default="", help="name of the recipe; default: that of the folder, file or host")
    new.add_argument("--contact", default="", help="of a crawl: a page or mailto: address for webmasters")
    new.set_defaults(run=_init)
    text = "list annotators, filters and parsers with their packages"
    commands.add_parser("filters", help=text, description=text).set_defaults(run=_filters)
    return parser, commands.choices


def add_lookup_commands(add: AddCommand) -> None:
    """Adds the commands that look up artifacts, documents, tokens and steps, with `add`."""
    trace = add("trace", "page to training steps and checkpoints, or step to pages", _trace)
    trace.add_argument(
        "what",
        help="a URL, a document id, domain:<name>, step:<number> of a checkpoint, or tuned:<number> of a fine-tuning",
    )
    trace.add_argument("--all", action="store_true", help="show all documents of a domain, all sequences of a step")
    trace.add_argument("--json", action="store_true", help="print JSON")
    explain = add("explain", "text of a model to the pages that contain it, and their steps", _explain)
    explain.add_argument("text", help="text written by the model, or any text; - reads standard input")
    explain.add_argument("--min-tokens", type=int, help="length of the shortest span to report; default: 8")
    explain.add_argument("--json", action="store_true", help="print JSON")
    near = add("similar", "near copies of a text among the documents of a version", _similar)
    near.add_argument("text", metavar="FILE", help="a file with the text; - reads standard input")
    near.add_argument("--jaccard", type=float, help="least similarity, 0 to 1; default: that of the version's dedup")
    near.add_argument("--most", type=int, default=20, help="copies to show; default: 20")
    near.add_argument("--json", action="store_true", help="print JSON")
    look = add("inspect", "contents of a token shard, a sequence or the batch of a step", _inspect)
    look.add_argument("what", help="name of a shard, a sequence as source:number, or step:<number>")
    look.add_argument("--json", action="store_true", help="print JSON")
    plan = add("plan", "estimate of the training, and its comparison with the run", _plan)
    plan.add_argument("--model", default="", help="config.json of another model whose training to plan")
    plan.add_argument("--tuned", action="store_true", help="the fine-tuning, of a recipe that also trains a model")
    plan.add_argument("--json", action="store_true", help="print JSON")
    audit = add("audit", "list all takedowns, and check that current artifacts contain none", _audit)
    audit.add_argument("--json", action="store_true", help="print JSON")
    gc = add("gc", "files of old versions that nothing needs; without --remove, only list them", _gc)
    gc.add_argument("--keep", type=int, metavar="N", help="newest versions to keep in full; default: the recipe's")
    gc.add_argument("--grace-days", type=float, help="days between listing and removal; default: the recipe's")
    gc.add_argument(
        "--drop", action="append", default=[], metavar="VERSION", help="do not protect the models of this version"
    )
    gc.add_argument("--remove", action="store_true", help="remove what has been listed for the days of grace")
    gc.add_argument("--json", action="store_true", help="print JSON")
    ledger = add("ledger", "list artifacts, or show one with its inputs and users", _ledger)
    ledger.add_argument("address", nargs="?", help="name@version")


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.add_argument("--recipe", required=True, help="name in dags/recipes, path of a .toml file, or JSON text")
    command.add_argument("--version", default="", help="version of the artifacts; default: the recipe's")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field, as in TOML")
    command.set_defaults(run=run)
    return command


def _store_command(commands: Any, name: str, text: str, function: StoreCommand) -> argparse.ArgumentParser:
    def run(options: argparse.Namespace) -> int | None:
        from tasks.run.runner import open_store

        recipe = _recipe(options)
        return function(recipe, open_store(recipe), options)

    return _command(commands, name, text, run)


def _recipe(options: argparse.Namespace) -> Any:
    from tasks.run.recipe import find_recipe

    recipe = find_recipe(options.recipe)
    return recipe.override(dict(_override(text) for text in options.set)) if options.set else recipe


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
    from tasks.run.tracking import SHELL, TrackingContext
    from tasks.trainer.launch.gang import node_of

    recipe, version = _recipe(options), options.version
    if options.stage == "takedown":
        version, request = takedown_overrides(options)
        recipe = recipe.override(request)
    source_version = options.source_version
    if variant := getattr(options, "variant", ""):
        from tasks.run.runner import open_store

        source_version = version or recipe.version
        recipe, version = variant_of(recipe, open_store(recipe), source_version, variant)
    run = {"version": version, "source_version": source_version, "member": options.member}
    if node_of():
        join_stage(recipe, options.stage, **run)
        return
    parent = options.parent_key or f"{SHELL}/{version or recipe.version}"
    tracking = TrackingContext(expand_env(recipe.place.mlflow), recipe.name, parent)
    result = run_stage(recipe, options.stage, **run, on_dask=options.dask, tracking=tracking)
    print(json.dumps(result.to_json()))
    if options.stage == "takedown" and recipe.place.lake:
        from tasks.run.lake import take_down_in_lake
        from tasks.run.runner import open_store

        for table in take_down_in_lake(recipe, open_store(recipe)):
            print(table.text(), file=sys.stderr)


def _trace(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.text import render
    from tasks.run.trace.trace import trace

    answer = trace(store, recipe.name, options.version or recipe.version, options.what, options.all)
    print(json.dumps(answer.to_json(), indent=1, default=str) if options.json else render(answer))


def _explain(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import MIN_TOKENS, explain
    from tasks.run.trace.text import render_explanation

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if options.text == "-" else options.text
    min_tokens = MIN_TOKENS if options.min_tokens is None else options.min_tokens
    answer = explain(store, recipe.name, options.version or recipe.version, text, min_tokens)
    print(json.dumps(answer.to_json(), indent=1, ensure_ascii=False) if options.json else render_explanation(answer))


def _similar(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import similar

    try:
        raw = sys.stdin.buffer.read() if options.text == "-" else Path(options.text).read_bytes()
    except OSError as error:
        raise InputError(f"{options.text} cannot be read ({error.strerror})", "name a text file, or -") from None
    version, text = options.version or recipe.version, raw.decode("utf-8", "replace")
    answer = similar(store, recipe.name, version, text, options.jaccard, options.most)
    print(json.dumps(answer.to_json(), indent=1, ensure_ascii=False) if options.json else answer.text())


def _inspect(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.inspect import inspect

    view = inspect(store, recipe.name, options.version or recipe.version, options.what)
    print(json.dumps(view.to_json(), indent=1) if options.json else view.text())


def _plan(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.forecast import plan

    answer = plan(recipe, store, options.version or recipe.version, options.model, options.tuned)
    print(json.dumps(answer.to_json(), indent=1) if options.json else answer.text())


def _what_if(options: argparse.Namespace) -> None:
    from tasks.core.errors import RecipeError
    from tasks.run.forecast import compare
    from tasks.run.recipe import find_recipe
    from tasks.run.runner import open_store

    section = "consolidate."
    if foreign := [text for text in options.set if not text.startswith(section)]:
        remedy = f"set fields of [{section[:-1]}], or run the stages again"
        raise RecipeError(f"{foreign[0]} is not a setting of {section[:-1]}", remedy)
    recipe = find_recipe(options.recipe)
    values = dict(_override(text.removeprefix(section)) for text in options.set)
    versions = (options.version or recipe.version, options.source_version)
    print(compare(open_store(recipe), recipe.name, recipe.of(ConsolidateConfig), values, *versions, options.examples))


def _export(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.export import MODEL_FORMATS, export, export_model

    request = (store, recipe.name, options.version or recipe.version, options.format, options.out)
    print(export_model(*request, tuned=options.tuned) if options.format in MODEL_FORMATS else export(*request))


def _dossier(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.dossier.dossier import write_dossier
    from tasks.run.dossier.summary import Statement

    statement = Statement(options.provider, options.contact, options.small_firm)
    version = options.version or recipe.version
    sample = {"traces": options.traces, "seed": options.seed}
    print(write_dossier(store, recipe.name, version, options.out, statement, _tables(recipe, store), **sample).text())


def _import_model(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.import_model import import_model

    print(import_model(store, recipe.name, options.version or recipe.version, options.source).text())


def _evaluate_model(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.evaluate_model import evaluate_model

    print(evaluate_model(store, recipe, options.version or recipe.version, options.model).table)


def _audit(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> int:
    """Returns 1 if a current artifact contains something that is taken down, else 0."""
    from tasks.run.trace.audit import audit

    answer = audit(store, recipe.name, _tables(recipe, store))
    print(json.dumps(answer.to_json(), indent=1, ensure_ascii=False) if options.json else answer.text())
    return 0 if answer.absent else 1


def _tables(recipe: "Recipe", store: "Store") -> "Sequence[TableCheck]":
    """Returns the checks of the tables of the recipe's lake; () without one."""
    if not recipe.place.lake:
        return ()
    from tasks.run.lake import check_lake

    return check_lake(recipe, store)


def _gc(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.core.config import parse
    from tasks.run.place import Retention, expand_env
    from tasks.run.retention import collect, delete_runs, survey

    given = {"versions": options.keep, "grace_days": options.grace_days}
    settings = (recipe.place.retention or Retention()).model_dump()
    settings |= {name: value for name, value in given.items() if value is not None}
    policy = parse(Retention, {name: value for name, value in settings.items() if value is not None}, "gc")
    answer = (collect if options.remove else survey)(store, recipe.name, policy, drop=options.drop)
    if options.remove and policy.runs == "delete":
        delete_runs(store, recipe.name, expand_env(recipe.place.mlflow))
    _print(answer.to_json(), options.json, answer.text)


def _lake(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from tasks.run.lake import write_lake

    tables = write_lake(recipe, store, options.version or recipe.version)
    content = {"tables": [asdict(table) for table in tables]}
    _print(content, options.json, lambda: "\n".join(table.text() for table in tables))


def _ledger(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.core.ledger import Ledger

    ledger = Ledger(store)
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


def _cycle(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.monthly.config import version_of
    from tasks.run.monthly.cycle import run_month

    version = options.version or (
        version_of(recipe.cycle.schedule, datetime.now(UTC)) if recipe.cycle else recipe.version
    )
    _, ended = run_month(recipe, version)
    if ended:
        print(f"ended early: {ended}")
    options.version, options.json = version, False
    _month(recipe, store, options)


def _month(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.monthly.report import month_report
    from tasks.run.monthly.tables import read_month, text
    from tasks.run.place import expand_env
    from tasks.run.tracking import SHELL, TrackingContext

    version = options.version or recipe.version
    tracking = TrackingContext(expand_env(recipe.place.mlflow), recipe.name, f"{SHELL}/{version}")
    content = read_month(month_report(store, recipe, version, tracking))
    _print(content, options.json, lambda: text(content))


def _reject(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    import getpass

    from tasks.run.rejection import reject, withdraw

    version = options.version or recipe.version
    if options.withdraw:
        ended = withdraw(store, recipe.name, version)
        print(f"{recipe.name}/mixture@{version} {'is not rejected any more' if ended else 'was not rejected'}")
    else:
        rejected = reject(store, recipe.name, version, getpass.getuser(), options.why)
        print(f"{rejected.address}: {rejected.record.note}")


def _sync(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.core.errors import TransientError
    from tasks.run.tracking.send import send_messages, waiting_messages

    try:
        sent = send_messages(store)
    except Exception as error:
        raise TransientError(
            f"MLflow does not accept {waiting_messages(store)} waiting runs ({error})", "start it and run again"
        ) from None
    print(f"{sent} sent, {waiting_messages(store)} waiting")


def _init(options: argparse.Namespace) -> None:
    from tasks.run.new_recipe import new_recipe

    print(new_recipe(options.what, options.name, options.contact).text())


def _filters(_options: argparse.Namespace) -> None:
    print("\n".join(_listing()))


def _listing() -> Iterator[str]:
    """Yields a line for each annotator, filter and parser that recipes can name, with the cause if it is unusable."""
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


def add_crawl_commands(add: AddCommand) -> None:
    """Adds the commands that read the crawl DB and the state of a crawl, with `add`."""
    status = add("status", "progress of a crawl cycle: partitions, queues, rates and back-offs", _status)
    status.add_argument("--hosts", type=int, default=_HOSTS, help=f"most hosts to show; default: {_HOSTS}")
    status.add_argument("--json", action="store_true", help="print JSON")
    why = add("why", "why URLs are crawled or not", _why)
    why.add_argument(
        "urls",
        nargs="+",
        metavar="url",
        help="as you would type it into a browser; without a scheme https, unless the crawl DB only has http; @FILE "
        "reads one per line, - reads standard input",
    )
    why.add_argument("--json", action="store_true", help="print JSON; an array for several URLs")
    _add_crawldb(add("crawldb", "contents of the crawl DB: counts of URLs, or the URLs themselves", _crawldb))


def _add_crawldb(command: argparse.ArgumentParser) -> None:
    for name, text in (
        ("status", "such as db_gone; can be repeated, as can the next three options"),
        ("reason", "such as http_404"),
        ("host", "host, host:port or *.domain, as in the hosts file"),
        ("kind", "page, sitemap or feed"),
    ):
        command.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    command.add_argument("--url", default="", metavar="PATTERN", help="pattern of whole URLs, with * and ?")
    command.add_argument("--due", action="store_true", help="only URLs that are due")
    # The same as in `tasks.stages.crawl.query`, which takes long to import.
    tops = ("hosts", "domains", "reasons", "statuses", "kinds", "depths")
    command.add_argument("--top", default="", choices=tops, help="count by this column, the most frequent values first")
    command.add_argument("--limit", type=int, default=_ROWS, help=f"most rows to show; default: {_ROWS}")
    command.add_argument("--json", action="store_true", help="print JSON")


def _status(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.status import render, status

    answer = status(store, recipe.name, options.version)
    _print(answer, options.json, lambda: render(answer, options.hosts))


def _why(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.why import render, verdict, why_all

    urls = list(_lines(options.urls))
    answers = why_all(store, recipe.name, recipe.of(CrawlConfig), urls, options.version)
    if len(urls) == 1:
        (answer,) = answers
        _print(answer, options.json, lambda: render(answer))
    elif options.json:
        _print(list(answers), True, str)
    else:
        for answer in answers:
            print(verdict(answer), flush=True)


def _crawldb(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.inject import member
    from tasks.stages.crawl.query import Filters, query, render

    filters = Filters(options.status, options.reason, options.host, options.kind, options.url, options.due)
    top = options.top or ("statuses" if filters == Filters([], [], [], []) else "")
    partitions = [member(number) for number in range(recipe.of(CrawlConfig).partitions)]
    limit = max(1, options.limit)
    answer = query(store, recipe.name, partitions, filters, top=top, limit=limit, version=options.version)
    _print(answer, options.json, lambda: render(answer))


def _lines(arguments: Iterable[str]) -> Iterator[str]:
    """Yields arguments, and for "@FILE" and "-" the stripped, non-empty lines of a file and of standard input."""
    for argument in arguments:
        if argument != "-" and not argument.startswith("@"):
            yield argument
            continue
        try:
            with open(0 if argument == "-" else argument[1:], encoding="utf-8", closefd=argument != "-") as file:
                yield from filter(None, map(str.strip, file))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{argument} cannot be read ({error})", "correct the path, or save it as UTF-8") from None


def _print(answer: Any, as_json: bool, text: Callable[[], str]) -> None:
    sys.stdout.write((json.dumps(answer, indent=1, default=str, ensure_ascii=False) if as_json else text()) + "\n")


def add_takedown_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a takedown request."""
    for name, field, meaning in (
        ("url", "urls", "a page, or the file:// URL of a document"),
        ("domain", "domains", "a host name, with all names below it"),
        ("document", "documents", "a document id, 32 hex digits"),
        ("lift", "lift", "a URL, domain or document id that is no longer taken down"),
    ):
        text = f"{meaning}; can be repeated, @FILE reads one per line"
        command.add_argument(f"--{name}", action="append", default=[], dest=field, metavar=name.upper(), help=text)
    command.add_argument("--reason", default="", help="reason of the request; recorded")
    command.add_argument("--requested-by", default="", help="who made the request; recorded")
    command.add_argument(
        "--from-crawl", action="store_true", help="include what the newest crawl cycle lists as withdrawn"
    )
    command.add_argument("--date", default="", help="time of the request, ISO 8601; default: now")


def takedown_overrides(options: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
    """Returns the version, by default the date of the request, and the overrides of the recipe by dotted paths.

    Raises:
        InputError: the date is invalid, or a file cannot be read.
    """
    try:
        moment = datetime.fromisoformat(options.date) if options.date else datetime.now(UTC)
    except ValueError:
        raise InputError(f'--date "{options.date}" is not a date', "write it as 2026-11-21T09:30:00+00:00") from None
    fields = {f"takedown.{field}": _values(getattr(options, field)) for field in _REQUEST_FIELDS}
    texts = {"takedown.reason": options.reason, "takedown.requested_by": options.requested_by}
    version = options.version or moment.strftime(VERSION_FORMAT)
    return version, {**fields, **texts, "takedown.from_crawl": options.from_crawl, **dated(moment)}


def _values(arguments: list[str]) -> list[str]:
    """Returns arguments, and for "@FILE" all lines of a file, which the request validates."""
    return [
        value
        for argument in arguments
        for value in (_read_lines(argument[1:]) if argument.startswith("@") else [argument])
    ]


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})", "correct the path, or save it as UTF-8") from None
