"""Inputs of a fine-tuning that its recipe does not make itself: the tokenizer of the base.

Reads the records of artifacts, of any recipe and version in the same store.
"""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.origin import BASE, tokenizer_of
from tasks.run.catalogue import STAGES
from tasks.run.named_inputs import named_inputs
from tasks.run.recipe import Recipe

TOKENIZER = "tokenizer"
_STAGE = STAGES["finetune"]


def tokenizer_of_base(recipe: Recipe, store: Store, version: str) -> Artifact:
    """Returns the tokenizer of the model that a fine-tuning begins from.

    Raises:
        InputError: the recipe names no base, there is no such model, or its tokenizer is gone.
    """
    own = ArtifactId(f"{recipe.name}/{_STAGE.output}", version)
    base = named_inputs(store, _STAGE, recipe.finetune, own).get(BASE)
    if not isinstance(base, Artifact):
        raise InputError(
            f"[finetune] base: {recipe.finetune.base} is not in {store.root}"
            if recipe.finetune.base
            else f"the recipe {recipe.name} makes no tokenizer, and names no base that would have one",
            "name a model that `python -m tasks ledger` lists",
        )
    found = tokenizer_of(base)
    if found is None:
        raise InputError(f"the tokenizer of {base.address} is gone", "restore it, or name another base")
    return found
