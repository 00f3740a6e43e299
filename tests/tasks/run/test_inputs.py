"""External files of a stage, which may be missing."""

from typing import Any

import pytest

from tasks.core.errors import InputError
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_changed_limit import recipe

__all__ = ["recipe"]


@pytest.mark.parametrize(
    ("use", "settings", "said"),
    [
        ("lexicon", {"path": "/nope.txt"}, r"annotator:lexicon: /nope\.txt cannot be read \(No such file"),
        ("lexicon", {"path": "/tmp"}, r"annotator:lexicon: /tmp cannot be read \(Is a directory\)"),
        ("perplexity", {"file": "/nope.arpa"}, r"annotator:perplexity: /nope\.arpa cannot be read \(No such file"),
        (
            "hugging_face",
            {"scores": {"good": {"folder": "/nope", "label": "good"}}},
            r"annotator:hugging_face: /nope/config\.json cannot be read \(No such file or directory\)",
        ),
    ],
)
def test_an_unreadable_external_file_is_named_with_its_role(
    recipe: Recipe, use: str, settings: dict[str, Any], said: str
) -> None:
    tracking = TrackingContext("", recipe.name)
    run_stage(recipe, "extract", tracking=tracking)
    use_too = ["language", *recipe.annotate.use, use]
    wrong = recipe.override({"annotate.use": use_too, f"annotate.settings.{use}": settings})
    with pytest.raises(InputError, match=f"{said}.*[Cc]orrect the path"):
        run_stage(wrong, "annotate", tracking=tracking)
