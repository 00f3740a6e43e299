"""Commands about models: the plan of a training or of a corpus, models in, models and tokens out."""

import argparse
from typing import TYPE_CHECKING

from tasks.run.commands.command import Command, on_store, recipe_arguments, show, version_of

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

TITLE = "train"


_TRAINING = ("recipe", "version", "set", "model", "tuned")
_CORPUS = ("pages", "html_bytes", "text_bytes", "part_mb", "workers", "memory_gb")


def _plan(options: argparse.Namespace) -> None:
    from tasks.core.errors import InputError

    training = [name for name in _TRAINING if getattr(options, name)]
    corpus = [name for name in _CORPUS if getattr(options, name) is not None]
    if foreign := training if "pages" in corpus else corpus:
        option = f"--{foreign[0].replace('_', '-')}"
        raise InputError(f"{option} is not an option of this plan", "name either --recipe or --pages")
    if corpus:
        _plan_corpus(options)
    elif "recipe" in training:
        on_store(_plan_training)(options)
    else:
        raise InputError("there is nothing to plan", "name the --recipe of a training, or the --pages of a corpus")


def _plan_training(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.forecast import plan

    answer = plan(recipe, store, version_of(recipe, options), options.model, options.tuned)
    show(options, answer.to_json(), answer.text)


def _plan_corpus(options: argparse.Namespace) -> None:
    from tasks.run.scale.plan import plan_corpus

    answer = plan_corpus(**{name: getattr(options, name) for name in _CORPUS})
    show(options, answer.to_json(), answer.text)


def _plan_arguments(command: argparse.ArgumentParser) -> None:
    training = command.add_argument_group("of a training")
    recipe_arguments(training, required=False)
    training.add_argument("--model", default="", help="config.json of another model whose training to plan")
    training.add_argument("--tuned", action="store_true", help="the fine-tuning, of a recipe that also trains a model")
    corpus = command.add_argument_group("of a corpus, from the crawl to the packed tokens")
    for name, text in (
        ("pages", "pages to capture, such as 10e9"),
        ("html-bytes", "bytes of HTML of a page; default: the mean of archived pages"),
        ("text-bytes", "bytes of text of a page; default: the mean of texts in five domains"),
        ("part-mb", "size of a part in MB; default: the smallest one that fits"),
        ("workers", "processes that make parts; default: 100"),
        ("memory-gb", "memory of a process in GB; default: 64"),
    ):
        corpus.add_argument(f"--{name}", type=float, help=text)


def _export(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.export import MODEL_FORMATS, export, export_model

    request = (store, recipe.name, version_of(recipe, options), options.format, options.out)
    if options.format in MODEL_FORMATS:
        chosen = {"tuned": options.tuned, "which": options.checkpoint, "dtype": options.dtype}
        print(export_model(*request, **chosen))
    else:
        print(export(*request))


def _export_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("format", choices=("megatron", "webdataset", "huggingface", "model", "gguf", "adapter"))
    command.add_argument("out", help="the folder to create")
    command.add_argument("--tuned", action="store_true", help="the fine-tuned model of the version (model, gguf)")
    help_text = "of a trained model (model, gguf); the best one is that of [train.best]"
    command.add_argument("--checkpoint", choices=("last", "best"), default="last", help=help_text)
    command.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="", help="of the weights (model); default: as imported, else fp32"
    )


def _import_model(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.import_model import import_model

    print(import_model(store, recipe.name, version_of(recipe, options), options.source).text())


def _import_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source", help="a folder with config.json, safetensors files and tokenizer.json, its URL, or hf://owner/name"
    )


def _evaluate_model(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.run.evaluate_model import evaluate_model

    print(evaluate_model(store, recipe, version_of(recipe, options), options.model).table)


def _evaluate_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="a folder, its URL, hf://owner/name@revision, or the id of an artifact")


def _reject(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    import getpass

    from tasks.run.rejection import reject, withdraw

    version = version_of(recipe, options)
    if options.withdraw:
        ended = withdraw(store, recipe.name, version)
        print(f"{recipe.name}/mixture@{version} {'is not rejected any more' if ended else 'was not rejected'}")
    else:
        rejected = reject(store, recipe.name, version, getpass.getuser(), options.why)
        print(f"{rejected.address}: {rejected.record.note}")


def _reject_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--why", default="", help="the reason")
    command.add_argument("--withdraw", action="store_true", help="end the rejection")


COMMANDS = (
    Command("plan", "cost of a training, or of a corpus (--pages)", _plan, _plan_arguments, recipe=False, json=True),
    Command("reject", "reject the mixture of a version", on_store(_reject), _reject_arguments),
    Command("export", "tokens or the model, in the formats of others", on_store(_export), _export_arguments),
    Command(
        "import-model", "a Hugging Face model as checkpoint and tokenizer", on_store(_import_model), _import_arguments
    ),
    Command("evaluate-model", "score a model from elsewhere", on_store(_evaluate_model), _evaluate_arguments),
)
