"""One command for each stage; that of a takedown reads the request."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.core.errors import InputError
from tasks.core.stage_spec import StageSpec
from tasks.run.catalogue import STAGES
from tasks.run.commands.command import Command, lines_of, recipe_of
from tasks.run.variants import DAGS, variant_of
from tasks.stages.takedown import VERSION_FORMAT, dated

_REQUEST_FIELDS = ("urls", "domains", "documents", "lift")


def stage_commands() -> Iterator[Command]:
    """Yields the command of each stage, in the order of the catalogue."""
    for stage in STAGES.values():
        yield Command(stage.name, f"run the stage that writes {stage.output}", _run, _arguments_of(stage))


def _arguments_of(stage: StageSpec) -> Any:
    def add(command: argparse.ArgumentParser) -> None:
        command.set_defaults(stage=stage.name, member="", variant="")
        command.add_argument("--source-version", help="version from which inputs missing at --version are read")
        command.add_argument("--parent-key", default="", help="MLflow: the parent run (dag id/run id)")
        command.add_argument("--dask", action="store_true", help="map parts over the cluster of [place.dask]")
        if stage.name == "takedown":
            _add_request(command)
        if stage.name == "train":
            text = "go back to a checkpoint of an incomplete run, and abandon what came after; STEP#2: a second time"
            command.add_argument("--resume-from", default="", metavar="STEP", help=text)
        if stage.dag in DAGS:
            command.add_argument("--variant", help="arm of [[canary.settings]] whose artifact to make")
        if stage.mapped:
            command.add_argument("--member", required=True, help="the member, such as p0 or arm-0-seed-1")

    return add


def _run(options: argparse.Namespace) -> None:
    from tasks.run.runner import join_stage, run_stage
    from tasks.run.tracking import SHELL, TrackingContext, server_of
    from tasks.trainer.launch.gang import node_of, nproc_of

    recipe, version = recipe_of(options), options.version
    if nproc := nproc_of():
        recipe = recipe.override({"place.train.nproc": nproc})
    if getattr(options, "resume_from", ""):
        recipe = recipe.override({"train.resume_from": options.resume_from})
    if options.stage == "takedown":
        version, request = _request(options)
        recipe = recipe.override(request)
    source_version = options.source_version
    if options.variant:
        from tasks.run.runner import open_store

        source_version = version or recipe.version
        recipe, version = variant_of(recipe, open_store(recipe), source_version, options.variant)
    run = {"version": version, "source_version": source_version, "member": options.member}
    if node_of():
        join_stage(recipe, options.stage, **run)
        return
    parent = options.parent_key or f"{SHELL}/{version or recipe.version}"
    tracking = TrackingContext(server_of(recipe.place), recipe.name, parent)
    result = run_stage(recipe, options.stage, **run, on_dask=options.dask, tracking=tracking)
    print(json.dumps(result.to_json()))
    if options.stage == "train" and options.resume_from and result.skipped:
        print("--resume-from has no effect on a complete run: go on with [train] fork", file=sys.stderr)
    if options.stage == "takedown" and recipe.place.lake:
        from tasks.run.lake import take_down_in_lake
        from tasks.run.runner import open_store

        for table in take_down_in_lake(recipe, open_store(recipe)):
            print(table.text(), file=sys.stderr)


def _add_request(command: argparse.ArgumentParser) -> None:
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


def _request(options: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
    """Returns the version of a takedown, by default the date of the request, and the overrides by dotted paths.

    Raises:
        InputError: the date is invalid, or a file cannot be read.
    """
    try:
        moment = datetime.fromisoformat(options.date) if options.date else datetime.now(UTC)
    except ValueError:
        raise InputError(f'--date "{options.date}" is not a date', "write it as 2026-11-21T09:30:00+00:00") from None
    fields = {
        f"takedown.{field}": [line for argument in getattr(options, field) for line in lines_of(argument)]
        for field in _REQUEST_FIELDS
    }
    texts = {"takedown.reason": options.reason, "takedown.requested_by": options.requested_by}
    version = options.version or moment.strftime(VERSION_FORMAT)
    return version, {**fields, **texts, "takedown.from_crawl": options.from_crawl, **dated(moment)}
