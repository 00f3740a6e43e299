"""Commands of operation: months, takedowns and their proof, old versions, copies for others."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tasks.run.commands.command import Command, on_store, show, version_of

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.lake import TableCheck
    from tasks.run.recipe import Recipe

TITLE = "operate"


def _cycle(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.monthly.cycle import run_month
    from tasks.run.schedule import version_of as month_of

    cycle, now = recipe.cycle, datetime.now(UTC)
    version = options.version or (month_of(cycle.schedule, now, cycle.timezone) if cycle else recipe.version)
    _, ended = run_month(recipe, version)
    if ended:
        print(f"ended early: {ended}")
    options.version, options.json = version, False
    _month(recipe, store, options)


def _month(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.monthly.report import month_report
    from tasks.run.monthly.tables import read_month, text
    from tasks.run.tracking import SHELL, TrackingContext, server_of

    version = version_of(recipe, options)
    tracking = TrackingContext(server_of(recipe.place), recipe.name, f"{SHELL}/{version}")
    content = read_month(month_report(store, recipe, version, tracking))
    show(options, content, lambda: text(content))


def _audit(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> int:
    """Returns 1 if a current artifact contains something that is taken down, else 0."""
    from tasks.run.trace.audit import audit

    answer = audit(store, recipe.name, _tables(recipe, store))
    show(options, answer.to_json(), answer.text)
    return 0 if answer.absent else 1


def _tables(recipe: "Recipe", store: "Store") -> "Sequence[TableCheck]":
    """Returns the checks of the tables of the recipe's lake; () without one."""
    if not recipe.place.lake:
        return ()
    from tasks.run.lake import check_lake

    return check_lake(recipe, store)


def _dossier(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.dossier.dossier import write_dossier
    from tasks.run.dossier.summary import Statement

    statement = Statement(options.provider, options.contact, options.small_firm)
    version = version_of(recipe, options)
    sample = {"traces": options.traces, "seed": options.seed}
    print(write_dossier(store, recipe.name, version, options.out, statement, _tables(recipe, store), **sample).text())


def _dossier_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", help="the folder to create")
    command.add_argument("--provider", default="", help="name of the provider")
    command.add_argument("--contact", default="", help="address for questions and complaints")
    command.add_argument("--small-firm", action="store_true", help="name 5 %% of the domains, at most 1,000, not 10 %%")
    command.add_argument("--traces", type=int, default=20, help="random documents to trace; default: 20")
    command.add_argument("--seed", type=int, default=0, help="of their choice")


def _gc(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.core.config import parse
    from tasks.run.place import Retention
    from tasks.run.retention import collect, delete_runs, survey
    from tasks.run.tracking import server_of

    given = {"versions": options.keep, "grace_days": options.grace_days}
    settings = (recipe.place.retention or Retention()).model_dump()
    settings |= {name: value for name, value in given.items() if value is not None}
    policy = parse(Retention, {name: value for name, value in settings.items() if value is not None}, "gc")
    answer = (collect if options.remove else survey)(store, recipe.name, policy, drop=options.drop)
    if options.remove and policy.runs == "delete":
        delete_runs(store, recipe.name, server_of(recipe.place))
    show(options, answer.to_json(), answer.text)


def _gc_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--keep", type=int, metavar="N", help="newest versions to keep in full; default: the recipe's")
    command.add_argument("--grace-days", type=float, help="days between listing and removal; default: the recipe's")
    command.add_argument(
        "--drop", action="append", default=[], metavar="VERSION", help="do not protect the models of this version"
    )
    command.add_argument("--remove", action="store_true", help="remove what has been listed for the days of grace")


def _lake(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.lake import write_lake

    tables = write_lake(recipe, store, version_of(recipe, options))
    show(options, {"tables": [asdict(table) for table in tables]}, lambda: "\n".join(table.text() for table in tables))


def _sync(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.core.errors import InputError, TransientError
    from tasks.run.tracking import server_of
    from tasks.run.tracking.outbox import forget_refused, send_messages, waiting_messages

    server_of(recipe.place)  # the messages have no password
    forgotten = forget_refused(store) if options.forget else 0
    delivery = send_messages(store, again=True)
    waiting, refused = waiting_messages(store), delivery.refused
    print(
        f"{delivery.sent} sent, {waiting} waiting, {len(refused)} refused" + f", {forgotten} forgotten" * options.forget
    )
    for outcome, messages in (("waiting", delivery.kept), ("refused", refused)):
        for one in messages:
            print(f"{outcome}: {one}")
    for server, reason in delivery.down.items():
        raise TransientError(f"MLflow at {server} does not respond ({reason})", "start it and run again")
    if refused:
        remedy = "restore what was deleted in MLflow and run again, or forget them with --forget"
        raise InputError(f"MLflow refuses {len(refused)} runs", remedy)


def _sync_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--forget", action="store_true", help="forget the runs that it refused before")


COMMANDS = (
    Command("cycle", "run the stages that a version lacks, then its report", on_store(_cycle)),
    Command("month", "what a month brought, cost, and needs of a person", on_store(_month), json=True),
    Command("audit", "takedowns, and whether artifacts contain none", on_store(_audit), json=True),
    Command("dossier", "what a model was trained on, for an auditor", on_store(_dossier), _dossier_arguments),
    Command("lake", "write a version into the tables of [place.lake]", on_store(_lake), json=True),
    Command("gc", "files of old versions that nothing needs", on_store(_gc), _gc_arguments, json=True),
    Command("sync", "send to MLflow the runs that it missed or refused", on_store(_sync), _sync_arguments),
)
