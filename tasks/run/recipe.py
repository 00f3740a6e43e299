"""The recipe: a whole run, from seeds to checkpoint, as one frozen tree of settings.

Reads `dags/recipes/*.toml`, or JSON text. Imports only configuration classes, because DAG files read recipes at parse
time. All sections except `[place]` are part of fingerprints.
"""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from tasks.core.config import C, Config, Problems, assign, canonical_json, nearest, parse, validate_strict
from tasks.core.errors import RecipeError
from tasks.core.stage_spec import StageSpec
from tasks.run.catalogue import ASSETS, NEEDS, OPERATIONS, PARTS, SECTIONS, STAGES, sections_of, stages_of
from tasks.run.monthly.config import Cycle
from tasks.run.place import Place
from tasks.run.recipe_validation import READ, Sections, inconsistencies, with_sources
from tasks.run.schedule import UTC, Schedule, Timezone
from tasks.stages.canary import ARM_SETTINGS, CanaryConfig
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.tokens import EncodeConfig, PackConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.defaults import default_batch, drop_defaults
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.tuning.config import FinetuneConfig, unsupported_settings

if TYPE_CHECKING:
    _Sections = Config
else:
    _Sections = create_model(
        "_Sections",
        __base__=Config,
        **{name: (config, Field(default_factory=cache(config.absent))) for name, config in SECTIONS.items()},
    )

_ROOT = Path(__file__).parents[2]
RECIPES = _ROOT / ("sluice_dags" if (_ROOT / "sluice_dags").is_dir() else "dags") / "recipes"
"""The recipes of the wheel, which has `dags/` as `sluice_dags`, or of the checkout."""

_SECTION = {config: section for section, config in SECTIONS.items()}

_NAME = re.compile(r"(?=.{1,63}$)[a-z][a-z0-9_]*(-[a-z0-9_]+)*(?<!_)")
"""A value of a Kubernetes label, which pods, gangs and Dask clusters have. Airflow and MLflow accept longer names."""

VERSION = r"[A-Za-z0-9][A-Za-z0-9._\-]{0,99}"
"""Pattern of a version; it becomes a folder of the store."""


class Recipe(_Sections):
    """One run of Sluice: the settings of its stages by section (`SECTIONS`), and settings for all stages."""

    name: str
    """Lower-case word, the name of the file without .toml; prefix of the names of its DAGs and artifacts."""

    version: str = "dev"
    """Default version of the artifacts of a run."""

    schedule: Schedule | None = None
    """Cron expression for the crawl; the later DAGs are triggered by Assets. `[cycle]` has its own instead."""

    timezone: Timezone = UTC
    """Time zone of the schedule, by whose clock its versions are named."""

    max_bad_share: float = 0.01
    """Largest share of rows that may be quarantined before a stage fails, 0 to 1."""

    makes: tuple[Literal["warc", "documents", "tokens", "mixture", "checkpoint"], ...] = ()
    """Assets that the recipe makes. Default: the assets of its sections, and all assets that they require."""

    cycle: Cycle | None = None
    """A month that runs by itself; None: the recipe has no DAG `cycle`."""

    place: Place = Place()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                "a recipe's name is at most 63 lower-case letters, digits, - and _, begins with a letter and does not "
                "end with _: pods have it as a label"
            )
        return name

    @field_validator("version")
    @classmethod
    def _plain_version(cls, version: str) -> str:
        if not re.fullmatch(VERSION, version):
            raise ValueError("a version is letters, digits, '.', '_' and '-', at most 100")
        return version

    @model_validator(mode="after")
    def _check_consistency(self) -> "Recipe":
        crawl = self.of(CrawlConfig)
        if "makes" not in self.model_fields_set:
            self.__dict__["makes"] = _assets_of(self.model_fields_set, crawl.enabled)
        self._fill_in()
        relevant = {name: getattr(self, name) for name in READ if _is_relevant(name, self.makes)}
        sections = Sections(frozenset(self.model_fields_set), self.makes, _crawls(self.makes, crawl), **relevant)
        problems = [
            *inconsistencies(sections),
            *self._unsupported_layout(),
            *self._without_cycles(),
            *self._without_schedule(),
            *self._unwatched(),
            *self._without_documents(),
            *self._unknown_tasks(),
        ]
        if problems := problems or [*self._unusable_arms()]:
            raise Problems(problems)
        return self

    def _unusable_arms(self) -> Iterator[str]:
        """Yields errors in the settings of canary arms."""
        sections = sorted({*sections_of("documents"), *sections_of("tokens")})
        allowed = (*(f"{section}." for section in sections), *ARM_SETTINGS)
        if self.of(CanaryConfig).settings and self.of(EncodeConfig).accumulate:
            yield "canary.settings: tokens that accumulate have no variants: set encode.accumulate = false"
        for arm in self.of(CanaryConfig).settings:
            where = f'canary.settings: the arm "{arm.name}"'
            foreign = [path for path in arm.set if not path.startswith(allowed)]
            yield from (f"{where} sets {path}: {nearest(path, (*sections, *ARM_SETTINGS))}" for path in foreign)
            try:
                self.variant({} if foreign else arm.set)
            except RecipeError as error:
                yield f"{where}: {error.cause}: {error.remedy}"

    def _fill_in(self) -> None:
        """Sets fields derived from other sections; raises ValueError if the recipe sets such a field itself."""
        crawls = _crawls(self.makes, self.of(CrawlConfig))
        self.__dict__["consolidate"] = with_sources(crawls, self.of(ExtractConfig), self.of(ConsolidateConfig))
        train, seq_len = self.of(TrainConfig), self.of(PackConfig).seq_len
        if "batch_size" not in train.model_fields_set:
            filled = train.model_copy(update={"batch_size": default_batch(train, seq_len)})
            if problems := filled.batch_problems():
                raise Problems(f".train{'' if one.startswith('.') else ': '}{one}" for one in problems)
            self.__dict__["train"] = filled
        for section, config in SECTIONS.items():
            for name, copied in config.COPIED.items():
                settings, wanted, original = getattr(self, section), self.field(copied.when), self.field(copied.section)
                if copied.named:
                    tables = {table.name: table for table in original}
                    original = tuple(tables[one] for one in wanted if one in tables)
                if copied.convert:
                    original = copied.convert(original)
                if getattr(settings, name) not in (None, original):
                    raise ValueError(f"{section}.{name} is filled in from [{copied.section}]: leave it out")
                copy = original if wanted else None
                self.__dict__[section] = settings.model_copy(update={name: copy})

    def _unsupported_layout(self) -> Iterator[str]:
        """Yields errors for a layout of the place that fine-tuning does not support."""
        tuning = self.of(FinetuneConfig)
        if tuning.active:
            yield from unsupported_settings(self.place.train.layout, tuning.loss)

    def _unknown_tasks(self) -> Iterator[str]:
        """Yields the tasks of canaries that the recipe does not define."""
        names = [task.name for task in self.of(EvaluateConfig).tasks]
        for name in self.of(CanaryConfig).tasks:
            if name not in names:
                remedy = nearest(name, names) if names else "define it there"
                yield f'canary.tasks: [[evaluate.tasks]] has no task "{name}": {remedy}'

    def _without_cycles(self) -> Iterator[str]:
        """Yields what keeps the recipe from being run month by month, if it has `[cycle]`."""
        if self.cycle is None:
            return
        if self.schedule:
            yield "schedule: [cycle] has the schedule of this recipe: remove this one, or [cycle]"
        needed = {"crawl": "crawl.recrawl", "corpus": "dedup_index.enabled", "tokens": "encode.accumulate"}
        for dag, field in needed.items():
            if dag in self.parts and not self.field(field):
                yield f"cycle: a month has only what is new: set {field} = true"

    def _without_schedule(self) -> Iterator[str]:
        """Yields time zones without a schedule; that of `[cycle]` also names its months."""
        removal = self.place.retention
        zones = {"timezone": (self.timezone, self.schedule)}
        zones |= {"place.retention.timezone": (removal.timezone, removal.schedule)} if removal else {}
        for field, (zone, schedule) in zones.items():
            if zone != UTC and schedule is None:
                yield f"{field}: it is the zone of a schedule: set the schedule beside it, or remove it"

    def _unwatched(self) -> Iterator[str]:
        """Yields what keeps the files of the recipe from starting its corpus, if they are watched."""
        if not self.place.watch_s:
            return
        if "corpus" not in self.parts or not self.of(ExtractConfig).files:
            yield "place.watch_s: there is no file to watch: add [[extract.files]]"
        others = {"crawl": "crawl" in self.parts, "[cycle]": self.cycle is not None, "schedule": bool(self.schedule)}
        for name, starts in others.items():
            if starts:
                yield f"place.watch_s: the corpus of this recipe is started by its {name}: remove one of the two"

    def _without_documents(self) -> Iterator[str]:
        """Yields an error for a lake whose recipe makes no documents."""
        if self.place.lake and "corpus" not in self.parts:
            yield "place.lake: this recipe makes no documents: remove it"

    def of(self, config: type[C]) -> C:
        """Returns the section whose settings have the class `config`."""
        section: C = getattr(self, _SECTION[config])
        return section

    def field(self, path: str) -> Any:
        """Returns the field at a dotted path ("crawl.recrawl")."""
        return reduce(getattr, path.split("."), self)

    def has(self, stage: StageSpec) -> bool:
        """Returns whether a stage runs in this recipe."""
        dag_runs = stage.dag in OPERATIONS or PARTS[stage.dag] in self.makes
        wanted = not stage.when or bool(self.field(stage.when))
        return dag_runs and wanted and bool(getattr(self, stage.section).active)

    def stages(self, dag: str) -> tuple[str, ...]:
        """Returns the stages of a DAG that run in this recipe, in order."""
        return tuple(stage for stage in stages_of(dag) if self.has(STAGES[stage]))

    def variant(self, changed: Mapping[str, Any]) -> "Recipe":
        """Returns the recipe with the settings of a canary arm, and without arms; raises RecipeError."""
        return self.override({"canary.settings": [], **changed})

    @property
    def parts(self) -> tuple[str, ...]:
        """The DAGs of the recipe that make assets for one another, in order."""
        return tuple(dag for dag in PARTS if self.stages(dag))

    @property
    def dags(self) -> tuple[str, ...]:
        """All DAGs of the recipe: parts, operations on artifacts, months, the removal of old files, and its lake."""
        more = {"cycle": self.cycle, "retention": self.place.retention, "lake": self.place.lake}
        operations = (dag for dag in OPERATIONS if self.stages(dag))
        return (*self.parts, *operations, *(dag for dag, settings in more.items() if settings))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Recipe":
        """Reads a TOML file; `extends = "other.toml"` inherits unset fields from a file in the same folder (one level).

        A mixture (`canary.current`, `canary.target`, `tokenizer.weights`, `train.mixture`, `train.anneal.mixture`) is
        inherited or replaced as a whole.

        Raises:
            RecipeError: one line per error with file, field, cause and remedy; or its name is not that of the file.
        """
        file = Path(path)
        try:
            recipe = parse(cls, _read_settings(file), file.name, _across)
        except RecipeError:
            raise
        except Exception as error:
            # Settings of extensions are classes of others. Whatever they raise is a fault of this recipe alone.
            cause = f"{file.name} cannot be checked: {type(error).__name__}: {error}"
            raise RecipeError(cause, "correct the settings or the extension that reads them") from error
        if recipe.name != file.stem:
            # DAGs, artifacts and `--recipe` use the name; two files with the same name would conflict.
            remedy = f'call the recipe "{file.stem}" or rename the file'
            raise RecipeError(f'{file.name}: name is "{recipe.name}"', remedy)
        return recipe

    @classmethod
    def from_text(cls, text: str) -> "Recipe":
        """Builds a recipe from `Recipe.text`; raises RecipeError."""
        try:
            settings = json.loads(text)
        except ValueError as error:
            raise RecipeError(f"the recipe's text is not JSON: {error}", "pass `Recipe.text` unchanged") from None
        return parse(cls, settings, "the recipe's JSON text", _across)

    @property
    def text(self) -> str:
        """The whole recipe as canonical JSON, for pods and XComs."""
        return canonical_json(self)

    def override(self, values: Mapping[str, Any]) -> "Recipe":
        """Returns a recipe with some fields replaced, given by dotted paths ("crawl.max_pages").

        Defaults of `consolidate.sources` and of the model's size are computed again, because the override may change
        the sources or the size.

        Raises:
            RecipeError: an unknown path or an unusable value.
        """
        settings: dict[str, Any] = json.loads(self.text)
        consolidate = self.of(ConsolidateConfig)
        if consolidate.sources == consolidate.judged_by_default():
            del settings["consolidate"]["sources"]
        settings["consolidate"].pop("kinds", None)
        drop_defaults(settings["train"], self.of(TrainConfig), self.of(PackConfig).seq_len)
        for section, config in SECTIONS.items():
            for name in config.COPIED:
                settings[section].pop(name, None)
        assign(settings, values)
        return parse(type(self), settings, "override", _across)


def _assets_of(sections: Collection[str], crawls: bool) -> tuple[str, ...]:
    """Returns the assets whose stages have settings in `sections`, and all assets that they require.

    In a recipe that fine-tunes, [evaluate] is what the fine-tuned model is scored on: no reason to train another one.
    """
    making = {*sections} - ({"evaluate"} if "finetune" in sections else set())
    assets = {asset for asset in ASSETS if any(section in making for section in sections_of(asset))}
    if not crawls:
        assets.discard("warc")
    needed = {required for asset in assets for required in NEEDS[asset]}
    return tuple(asset for asset in ASSETS if asset in assets | needed)


def _crawls(makes: Collection[str], crawl: CrawlConfig) -> bool:
    """Returns whether documents come from a crawl; `makes` is empty if it is derived from the sections."""
    return crawl.enabled and (not makes or "warc" in makes)


def _is_relevant(section: str, makes: Sequence[str]) -> bool:
    """Returns whether a section affects what a recipe makes. Sources of documents and operations always do."""
    always = ("crawl", "extract", "examples", "finetune")
    return section in always or any(section in sections_of(asset) for asset in makes)


def _across(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields inconsistencies between sections when the settings as a whole are invalid.

    Reads only the fields that the checks use. A section in which one of these is invalid is skipped.
    """
    crawl = _readable("crawl", settings)
    if crawl is None:
        return
    makes = settings.get("makes", _assets_of(settings, crawl.enabled))
    if not isinstance(makes, list | tuple) or any(asset not in ASSETS for asset in makes):
        return
    sections = {name: _readable(name, settings) for name in READ if _is_relevant(name, makes)}
    crawls, extract, consolidate = _crawls(makes, crawl), sections["extract"], sections.get("consolidate")
    if extract and consolidate:
        sections["consolidate"] = with_sources(crawls, extract, consolidate)
    yield from inconsistencies(Sections(frozenset(settings), tuple(makes), crawls, **sections))


def _readable(section: str, settings: Mapping[str, Any]) -> Any:
    """Returns a section with only the fields that the checks use, or None if one of these is invalid."""
    config = SECTIONS[section]
    if section not in settings:
        return config.absent()
    fields = settings[section]
    try:
        return validate_strict(config, {field: fields[field] for field in READ[section] if field in fields})
    except (ValidationError, TypeError):
        return None


def recipe_files() -> list[Path]:
    """Returns the recipe files of $SLUICE_RECIPES, or of this checkout or wheel, sorted."""
    return sorted(Path(os.environ.get("SLUICE_RECIPES", RECIPES)).glob("*.toml"))


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
    names = ", ".join(path.stem for path in files) or "none"
    raise RecipeError(f'no recipe "{name}"', f"there are: {names}; or give the path of a .toml file")


_MIXTURES = ("current", "target", "weights", "mixture")
"""Tables that an extending recipe overrides only as a whole: shares that sum to 1."""


def _read_settings(file: Path) -> dict[str, Any]:
    """Returns the settings in a file, merged over those of the file that its `extends` names.

    Raises:
        RecipeError: a file is missing, cannot be read or is not TOML, or the extended file extends another one.
    """
    settings = _read_toml(file)
    base_name = settings.pop("extends", None)
    if not base_name:
        return settings
    base = _read_toml(file.parent / str(base_name))
    if "extends" in base:
        raise RecipeError(f"{file.name}: {base_name} extends another recipe itself", "extend only one level")
    return _merge(base, settings)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}", "check the path") from None
    except OSError as error:
        raise RecipeError(f"{path.name} cannot be read: {error}", "check the file and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path.name} is not TOML: {error}", "correct the line") from None


def _merge(base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    shared = base.keys() & settings.keys()
    tables = {key: _merge(base[key], settings[key]) for key in shared if _are_tables(base, settings, key)}
    return {**base, **settings, **tables}


def _are_tables(base: dict[str, Any], settings: dict[str, Any], key: str) -> bool:
    return key not in _MIXTURES and isinstance(base[key], dict) and isinstance(settings[key], dict)
