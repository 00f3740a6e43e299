"""Questions about what a recipe made: documents, tokens, steps, artifacts."""

import argparse
from typing import TYPE_CHECKING

from tasks.run.commands.command import Command, on_store, read_text, show, version_of

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

TITLE = "ask"


def _trace(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.text import render
    from tasks.run.trace.trace import trace

    answer = trace(store, recipe.name, version_of(recipe, options), options.what, options.all)
    show(options, answer.to_json(), lambda: render(answer))


def _trace_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "what",
        help="a URL, a document id, domain:<name>, step:<number> of a checkpoint, or tuned:<number> of a fine-tuning",
    )
    command.add_argument("--all", action="store_true", help="show all documents of a domain, all sequences of a step")


def _explain(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import MIN_TOKENS, explain
    from tasks.run.trace.text import render_explanation

    text = read_text("-").decode("utf-8", "replace") if options.text == "-" else options.text
    min_tokens = MIN_TOKENS if options.min_tokens is None else options.min_tokens
    answer = explain(store, recipe.name, version_of(recipe, options), text, min_tokens)
    show(options, answer.to_json(), lambda: render_explanation(answer))


def _explain_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("text", help="text written by the model, or any text; - reads standard input")
    command.add_argument("--min-tokens", type=int, help="length of the shortest span to report; default: 8")


def _similar(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.explain import similar

    text = read_text(options.text).decode("utf-8", "replace")
    answer = similar(store, recipe.name, version_of(recipe, options), text, options.jaccard, options.most)
    show(options, answer.to_json(), answer.text)


def _similar_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("text", metavar="FILE", help="a file with the text; - reads standard input")
    command.add_argument("--jaccard", type=float, help="least similarity, 0 to 1; default: that of the version's dedup")
    command.add_argument("--most", type=int, default=20, help="copies to show; default: 20")


def _inspect(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.trace.inspect import inspect

    view = inspect(store, recipe.name, version_of(recipe, options), options.what)
    show(options, view.to_json(), view.text)


def _inspect_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", help="name of a shard, a sequence as source:number, or step:<number>")


def _ledger(_recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
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


def _ledger_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("address", nargs="?", help="name@version")


COMMANDS = (
    Command("trace", "page to training steps, or step to pages", on_store(_trace), _trace_arguments, json=True),
    Command(
        "explain", "text of a model to the pages that contain it", on_store(_explain), _explain_arguments, json=True
    ),
    Command("similar", "near copies of a text in a version", on_store(_similar), _similar_arguments, json=True),
    Command(
        "inspect", "a token shard, a sequence, the batch of a step", on_store(_inspect), _inspect_arguments, json=True
    ),
    Command("ledger", "list artifacts, or one with its inputs and users", on_store(_ledger), _ledger_arguments),
)
