"""Hooks of a stage: what its module computes for the runner besides `run`, declared as `HOOKS`.

    HOOKS = Hooks(external=external)

A module without `HOOKS` has none. Under another name, or outside `HOOKS`, a function is no hook.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tasks.core.config import Config
from tasks.core.stage import Inputs, Output
from tasks.formats.documents.external_files import DatasetFiles
from tasks.formats.documents.words import WORDS
from tasks.formats.lakes import TableAddress

External = list[str] | DatasetFiles | TableAddress
"""An input from outside the store: paths of files, files of a dataset of the hub, or a table of a lake."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Hooks(Generic[C]):
    """The hooks of a stage with the settings `C`; None for those that it does not have.

    Attributes:
        external: returns the inputs from outside the store, by role. Their content is part of the fingerprint
            (`tasks.run.outside`), and `Inputs.external` has a reference to each.
        code: returns the versions of code that only some settings use, by name; part of the fingerprint.
        join: runs the stage on a node other than 0 of a gang, with the same inputs, and returns when it has ended.
            Without it the stage runs on node 0 alone.
    """

    external: Callable[[C], Mapping[str, External]] | None = None
    code: Callable[[C], Mapping[str, str]] | None = None
    join: Callable[[C, Inputs, Output], None] | None = None

    @classmethod
    def of(cls, module: Any) -> "Hooks[Any]":
        """Returns the hooks of the module of a stage."""
        hooks: Hooks[Any] = getattr(module, "HOOKS", cls())
        return hooks


def words_version(_: Config) -> Mapping[str, str]:
    """Returns the version of the segmentation of scripts without spaces: the hook `code` of stages that count words."""
    return {"words": WORDS}
