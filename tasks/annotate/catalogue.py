"""Every annotator by name. Adding one is a file beside this one and a line here.

Used by `config` (to check settings) and `stage`. Annotators are named by strings and imported when wanted, so a recipe
that does not use a model does not load it; their modules import what is heavy inside functions, because recipes are
read at DAG parse time.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from tasks.annotate.base import Annotator
from tasks.config import nearest

CATALOGUE = {
    "language": "tasks.annotate.language:Language",
    "gopher_quality": "tasks.annotate.gopher_quality:GopherQuality",
    "gopher_repetition": "tasks.annotate.gopher_repetition:GopherRepetition",
    "fineweb_lines": "tasks.annotate.fineweb_lines:FinewebLines",
    "quality_score": "tasks.annotate.quality_score:QualityScore",
    "pii_email": "tasks.annotate.pii_email:PiiEmail",
}

DEFAULT = ("language", "gopher_quality", "gopher_repetition", "quality_score", "pii_email")
"""What a recipe uses that names no annotators."""


def load(name: str, settings: Mapping[str, Any]) -> Annotator:
    """Returns the annotator `name` with `settings`; raises ValueError naming what is unknown or out of range."""
    if name not in CATALOGUE:
        raise ValueError(f'no annotator "{name}": {nearest(name, CATALOGUE)}')
    module, _, class_name = CATALOGUE[name].partition(":")
    kind: type[Annotator] = getattr(import_module(module), class_name)
    if unknown := sorted(set(settings) - set(kind.model_fields)):
        raise ValueError(f"{name} has no setting {unknown[0]}: {nearest(unknown[0], kind.model_fields)}")
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
