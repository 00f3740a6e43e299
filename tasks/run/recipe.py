"""The recipe: a whole run, from seeds to checkpoint, as one frozen tree of settings.

Reads `dags/recipes/*.toml`, or JSON text. Imports configuration classes only: DAG files read recipes at parse time. All
sections count in fingerprints, except `[place]`.
"""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError, create_model, field_validator, model_validator

from tasks.core.config import C, Config, Problems, assign, canonical_json, parse, validate_strict
from tasks.core.errors import RecipeError
from tasks.core.stage_spec import StageSpec
from tasks.run.catalogue import ASSETS, NEEDS, OPERATIONS, PARTS, SECTIONS, STAGES, sections_of, stages_of
from tasks.run.place import Place
from tasks.run.recipe_validation import READ, Sections, inconsistencies, with_sources
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import ExtractConfig
from tasks.trainer.tuning.config import FinetuneConfig, beyond

if TYPE_CHECKING:
    _Sections = Config
else:
    _Sections = create_model(
        "_Sections", __base__=Config, **{name: (config, config.absent()) for name, config in SECTIONS.items()}
    )

RECIPES = Path(__file__).parents[2] / "dags" / "recipes"

_SECTION = {config: section for section, config in SECTIONS.items()}

_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Recipe(_Sections):
    """One run of Sluice: the settings of its stages by section (`SECTIONS`), and those that concern all of them."""

    name: str
    """Lower-case word; prefix of its DAGs and artifacts."""

    version: str = "dev"
    """Default version of the artifacts of a run."""

    schedule: str | None = None
    """Cron line of the crawl; the later DAGs are triggered by Assets."""

    max_bad_share: float = 0.01
    """Largest share of rows that may be quarantined before a stage stops."""

    makes: tuple[Literal["warc", "documents", "tokens", "mixture", "checkpoint"], ...] = ()
    """Assets that the recipe makes. Default: those of its sections, and all that these are made from."""

    place: Place = Place()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("a recipe's name is lower-case letters, digits, - and _, and begins with a letter")
        return name

    @field_validator("version")
    @classmethod
    def _plain_version(cls, version: str) -> str:
        if not _VERSION.fullmatch(version):
            raise ValueError("a version is letters, digits, '.', '_' and '-'")
        return version

    @model_validator(mode="after")
    def _agrees(self) -> "Recipe":
        crawl = self.of(CrawlConfig)
        if "makes" not in self.model_fields_set:
            self.__dict__["makes"] = _made_by(self.model_fields_set, crawl.enabled)
        self._fill_in()
        sections = {name: getattr(self, name) for name in READ if _counts(name, self.makes)}
        checked = Sections(frozenset(self.model_fields_set), self.makes, _crawls(self.makes, crawl), **sections)
        if problems := [*inconsistencies(checked), *self._beyond_one_node()]:
            raise Problems(problems)
        return self

    def _fill_in(self) -> None:
        """Completes sections with what others say; raises ValueError where a recipe gives such a field itself."""
        crawls = _crawls(self.makes, self.of(CrawlConfig))
        self.__dict__["consolidate"] = with_sources(crawls, self.of(ExtractConfig), self.of(ConsolidateConfig))
        for section, config in SECTIONS.items():
            for name, (source, when) in config.COPIED.items():
                settings, given = getattr(self, section), getattr(self, source)
                if getattr(settings, name) not in (None, given):
                    raise ValueError(f"{section}.{name} is filled in from [{source}]: leave it out")
                copied = given if self.field(when) else None
                self.__dict__[section] = settings.model_copy(update={name: copied})

    def _beyond_one_node(self) -> Iterator[str]:
        """Yields what the place asks for that a fine-tuning does not have."""
        if self.of(FinetuneConfig).active:
            cluster = self.place.kubernetes
            yield from beyond(self.place.train.layout, cluster.nodes if cluster else 1)

    def of(self, config: type[C]) -> C:
        """Returns the section with the settings of a class."""
        found: C = getattr(self, _SECTION[config])
        return found

    def field(self, path: str) -> Any:
        """Returns the field at a dotted path ("crawl.recrawl")."""
        return reduce(getattr, path.split("."), self)

    def has(self, stage: StageSpec) -> bool:
        """Returns whether a stage runs in this recipe."""
        made = stage.dag in OPERATIONS or PARTS[stage.dag] in self.makes
        return made and bool(getattr(self, stage.section).active)

    def stages(self, dag: str) -> tuple[str, ...]:
        """Returns the stages of a DAG that run in this recipe, in order."""
        return tuple(stage for stage in stages_of(dag) if self.has(STAGES[stage]))

    @property
    def parts(self) -> tuple[str, ...]:
        """The DAGs that follow each other: those with a stage that runs."""
        return tuple(dag for dag in PARTS if self.stages(dag))

    @property
    def dags(self) -> tuple[str, ...]:
        """All DAGs of the recipe: its parts, and the operations on what these have made."""
        return (*self.parts, *(dag for dag in OPERATIONS if self.stages(dag)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Recipe":
        """Reads a TOML file; `extends = "other.toml"` inherits unset fields from a file in the same folder (one level).

        A mixture (`canary.current`, `canary.target`, `tokenizer.weights`, `train.mixture`, `train.anneal.mixture`) is
        inherited as a whole.

        Raises:
            RecipeError: one line per error with file, field, cause and remedy.
        """
        file = Path(path)
        return parse(cls, read_settings(file), file.name, _across)

    @classmethod
    def from_text(cls, text: str) -> "Recipe":
        """Builds a recipe from `Recipe.text`; raises RecipeError."""
        try:
            settings = json.loads(text)
        except ValueError as error:
            raise RecipeError(f"the recipe's JSON text is no JSON: {error}", "give `Recipe.text` as it is") from None
        return parse(cls, settings, "the recipe's JSON text", _across)

    @property
    def text(self) -> str:
        """The whole recipe as canonical JSON, for pods and XComs."""
        return canonical_json(self)

    def override(self, values: Mapping[str, Any]) -> "Recipe":
        """Returns a recipe with some fields replaced, named by dotted paths ("crawl.max_pages").

        The default of `consolidate.sources` is computed again, since the override may change the sources.

        Raises:
            RecipeError: an unknown path or an unusable value.
        """
        settings: dict[str, Any] = json.loads(self.text)
        consolidate = self.of(ConsolidateConfig)
        if consolidate.sources == consolidate.judged_by_default():
            del settings["consolidate"]["sources"]
        settings["consolidate"].pop("kinds", None)
        for section, config in SECTIONS.items():
            for name in config.COPIED:
                settings[section].pop(name, None)
        assign(settings, values)
        return parse(type(self), settings, "override", _across)


def _made_by(given: Collection[str], crawls: bool) -> tuple[str, ...]:
    """Returns the assets of the given sections, and all that these are made from."""
    assets = {asset for asset in ASSETS if any(section in given for section in sections_of(asset))}
    if not crawls:
        assets.discard("warc")
    needed = {required for asset in assets for required in NEEDS[asset]}
    return tuple(asset for asset in ASSETS if asset in assets | needed)


def _crawls(makes: Collection[str], crawl: CrawlConfig) -> bool:
    """Returns whether documents come from a crawl; `makes` may be empty where it follows from the sections."""
    return crawl.enabled and (not makes or "warc" in makes)


def _counts(section: str, makes: Sequence[str]) -> bool:
    """Returns whether a section affects what a recipe makes; the sources of documents and its operations always do."""
    return section in ("crawl", "extract", "examples") or any(section in sections_of(asset) for asset in makes)


def _across(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields inconsistencies between the sections of settings that are invalid as a whole.

    Reads only the fields that the checks use; a section where these are invalid is left out.
    """
    crawl = _readable("crawl", settings)
    if crawl is None:
        return
    makes = settings.get("makes", _made_by(settings, crawl.enabled))
    if not isinstance(makes, list | tuple) or any(asset not in ASSETS for asset in makes):
        return
    sections = {name: _readable(name, settings) for name in READ if _counts(name, makes)}
    crawls, extract, consolidate = _crawls(makes, crawl), sections["extract"], sections.get("consolidate")
    if extract and consolidate:
        sections["consolidate"] = with_sources(crawls, extract, consolidate)
    yield from inconsistencies(Sections(frozenset(settings), tuple(makes), crawls, **sections))


def _readable(section: str, settings: Mapping[str, Any]) -> Any:
    """Returns a section with the fields that the checks use, or None where these are invalid."""
    config = SECTIONS[section]
    if section not in settings:
        return config.absent()
    given = settings[section]
    try:
        return validate_strict(config, {field: given[field] for field in READ[section] if field in given})
    except (ValidationError, TypeError):
        return None


def recipe_files(folder: Path | None = None) -> list[Path]:
    """Returns the recipe files of `folder`, of $SLUICE_RECIPES, or of this checkout, sorted."""
    found = folder or Path(os.environ.get("SLUICE_RECIPES", RECIPES))
    return sorted(found.glob("*.toml"))


def load_recipes(folder: Path | None = None) -> list[Recipe]:
    """Loads every recipe of a folder (see `recipe_files`); raises RecipeError at the first unusable one."""
    return [Recipe.load(path) for path in recipe_files(folder)]


def find_recipe(name: str) -> Recipe:
    """Loads a recipe by its name, by the path of its file, or from its JSON text; raises RecipeError."""
    if name.lstrip().startswith("{"):
        return Recipe.from_text(name)
    if name.endswith(".toml"):
        return Recipe.load(name)
    files = recipe_files()
    for path in files:
        if path.stem == name:
            return Recipe.load(path)
    known = ", ".join(path.stem for path in files) or "none"
    raise RecipeError(f'no recipe "{name}"', f"known are: {known}; or give the path of a .toml file")


_MIXTURES = ("current", "target", "weights", "mixture")
"""Tables that an extending recipe overrides only as a whole: shares that sum to 1."""


def read_settings(file: Path) -> dict[str, Any]:
    """Returns the settings of a file over those of the one that its `extends` names.

    Raises:
        RecipeError: a file is missing, cannot be read or is not TOML, or what is extended extends another one itself.
    """
    settings = _toml(file)
    base = settings.pop("extends", None)
    if not base:
        return settings
    below = _toml(file.parent / str(base))
    if "extends" in below:
        raise RecipeError(f"{file.name}: {base} extends another recipe itself", "extend one level only")
    return _merged(below, settings)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}", "check the path") from None
    except OSError as error:
        raise RecipeError(f"{path.name} cannot be read: {error}", "check the file and its rights") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path.name} is not TOML: {error}", "correct the line") from None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys() if _tables(below, above, key)}
    return {**below, **above, **both}


def _tables(below: dict[str, Any], above: dict[str, Any], key: str) -> bool:
    return key not in _MIXTURES and isinstance(below[key], dict) and isinstance(above[key], dict)
