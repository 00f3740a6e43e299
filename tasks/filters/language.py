"""Language of a document and of its paragraphs, by a fastText model: lid.176, or one that the recipe names.

Reads the model that `python -m tasks.filters.pretrained` fetched, or the file of the setting `model` (GlotLID, OpenLID
and the like). Source: Joulin et al., "Bag of Tricks for Efficient Text Classification", arXiv 1607.01759; model
lid.176.ftz. Only the first 2,000 characters are classified: 4 times faster than the whole text, with the same label on
98.5 % of pages. Accuracy of lid.176 by language: `python -m benchmarks.classifiers languages`.

A language is identified by its ISO 639-1 code ("en") or, if it has none, by its ISO 639-3 code ("ceb"), like the labels
of lid.176. NLLB, OpenLID and GlotLID use ISO 639-3 with ISO 15924 ("eng_Latn") and have labels for individual
languages ("cmn", "arb", "zsm") of one ISO 639-1 code. Source of the codes: the tables of ISO 639-3 (SIL International)
with its macrolanguages.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from tasks.core.errors import InputError
from tasks.filters import UNDETERMINED
from tasks.filters.base import Annotator, Filter, Measurements, Reasons, Threshold

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch


_SCRIPTED = re.compile("([a-z]{3})_[A-Z][a-z]{3}")

# ISO 639-3 and 639-1. Norwegian in general has the code of Bokmål.
_TWO_LETTERS = (
    "aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av ave:ae aym:ay aze:az bak:ba bam:bm bel:be ben:bn "
    "bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu chv:cv cor:kw cos:co cre:cr cym:cy dan:da "
    "deu:de div:dv dzo:dz ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy ful:ff "
    "gla:gd gle:ga glg:gl glv:gv grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy "
    "ibo:ig ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv jpn:ja kal:kl kan:kn kas:ks kat:ka "
    "kau:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku lao:lo lat:la lav:lv lim:li lin:ln "
    "lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml mar:mr mkd:mk mlg:mg mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv "
    "nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn nob:no nor:no nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pli:pi "
    "pol:pl por:pt pus:ps que:qu roh:rm ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm sna:sn "
    "snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv tah:ty tam:ta tat:tt tel:te tgk:tg "
    "tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzb:uz ven:ve vie:vi vol:vo "
    "wln:wa wol:wo xho:xh yid:yi yor:yo zha:za zho:zh zul:zu"
)
# Individual languages of a macrolanguage that has an ISO 639-1 code.
_MEMBERS = (
    "cmn:zh arb:ar zsm:ms pes:fa prs:fa lvs:lv ekk:et als:sq swh:sw npi:ne ory:or uzn:uz khk:mn azj:az plt:mg ydd:yi "
    "gaz:om quy:qu kmr:ku pbt:ps ayr:ay knc:kr fuv:ff gug:gn fil:tl kpv:kv"
)
# Labels of lid.176 that are no ISO 639-1 codes.
_OTHER_LABELS = (
    "als arz ast azb bar bcl bh bpy bxr cbk ceb ckb diq dsb dty eml frr gom hif hsb ilo jbo krc lez lmo lrc mai mhr "
    "min mrj mwl myv mzn nah nap nds new pam pfl pms pnb rue sah scn sco tyv vec vep vls war wuu xal xmf yue"
)


class LanguageLabels(Annotator):
    """Labels a document with its language (ISO 639-1 code, else ISO 639-3) and the model's probability.

    The label of a text without letters is "und", its score 0.
    """

    model: str = ""
    """A fastText model file on the machine that annotates; "" for lid.176, which has 176 languages. Labels such as
    "eng_Latn" are converted to codes (see the module). The bytes of the file are part of the fingerprint."""

    labels: dict[str, str] = {}
    """Codes by label of the model, where they differ from the default code: `{zho_Hant = "zh-Hant"}`."""

    chars: int = Field(default=2000, ge=1)
    """Characters from the beginning of the text that are classified."""

    paragraphs: bool = False
    """Also label every paragraph (block between blank lines), with its position."""

    min_paragraph: int = Field(default=100, ge=1)
    """Paragraphs with fewer characters get no label, because short texts are not classified reliably."""

    _model: Any = PrivateAttr(default=None)
    _codes: dict[str, str] = PrivateAttr(default_factory=dict)

    places: ClassVar[bool] = True

    splits: ClassVar[tuple[str, ...]] = ()

    def external(self) -> list[str]:
        """Returns the model file if the settings name one; lid.176 is a fixed file."""
        return [self.model] if self.model else []

    def type(self) -> "pa.StructType":
        """See `Annotator.type`; `start` and `end` of a paragraph are in code points."""
        import pyarrow as pa

        label = [pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float32(), nullable=False)]
        bounds = [pa.field("start", pa.int32(), nullable=False), pa.field("end", pa.int32(), nullable=False)]
        paragraphs = pa.list_(pa.field("item", pa.struct([*bounds, *label]), nullable=False))
        return pa.struct([*label, pa.field("paragraphs", paragraphs, nullable=False)] if self.paragraphs else label)

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Loads the model; raises InputError when it is missing, invalid, or lacks a label of `labels`."""
        self._model, labels = _model_at(self.model) if self.model else _lid176()
        if unknown := sorted(set(self.labels) - set(labels)):
            similar = get_close_matches(unknown[0], labels) or labels[:3]
            raise InputError(
                f'{self.model or "lid.176"} has no label "{unknown[0]}", which language.labels names',
                f"name labels of the model (it has {len(labels)}), such as {', '.join(similar)}",
            )
        self._codes = {label: self.labels.get(label, code_of(label)) for label in labels}

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        predicted = self._labels(batch.texts)
        columns: dict[str, Any] = {"label": [label for label, _ in predicted]}
        columns["score"] = [score for _, score in predicted]
        if self.paragraphs:
            columns["paragraphs"] = [self._paragraphs(text) for text in batch.texts]
        return columns

    def _paragraphs(self, text: str) -> list[dict[str, Any]]:
        bounds, position = [], 0
        for block in text.split("\n\n"):
            if len(block) >= self.min_paragraph:
                bounds.append((position, position + len(block)))
            position += len(block) + 2
        labels = self._labels([text[start:end] for start, end in bounds])
        return [
            {"start": start, "end": end, "label": label, "score": score}
            for (start, end), (label, score) in zip(bounds, labels, strict=True)
        ]

    def _labels(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        # fastText expects a single line, and stops at NUL.
        heads = [" ".join(text[: self.chars].replace("\0", " ").split()) for text in texts]
        rows = [row for row, head in enumerate(heads) if any(map(str.isalpha, head))]
        results = [(UNDETERMINED, 0.0)] * len(heads)
        labels, scores = self._model.predict([heads[row] for row in rows]) if rows else ([], [])
        for row, (label, *_), (score, *_) in zip(rows, labels, scores, strict=True):
            # A probability can exceed 1 by a rounding error.
            results[row] = self._codes[label.removeprefix("__label__")], min(1.0, round(float(score), 4))
        return results


class Language(Filter):
    """Drops texts whose language is not listed or is uncertain.

    >>> Language(keep=("en",)).verdict("Das Boot kam am Abend in den Hafen, und niemand hatte es erwartet.")
    'language_other'
    >>> Language(keep=("en",)).verdict("The boat came into port in the evening, and nobody had expected it.")
    """

    measured_by = LanguageLabels

    keep: tuple[str, ...] = ()
    """Labels to keep ("en", "de"); empty keeps all. Others are dropped as `language_other`."""

    min_score: float = Field(default=0.0, ge=0, le=1)
    """Documents whose label has a lower probability are dropped as `language_unsure`; 0 keeps all."""

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        import numpy as np

        if self.keep:
            yield "language_other", ~np.isin(measured["label"].astype(str), self.keep)
        yield from super().reasons(measured)

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        yield Threshold("min_score", "language_unsure", "least", self.min_score, measured["score"])


def code_of(label: str) -> str:
    """Returns the code for a model's label; a label without a script is returned unchanged.

    >>> [code_of(label) for label in ("eng_Latn", "cmn_Hani", "ceb_Latn", "en", "ceb", "other")]
    ['en', 'zh', 'ceb', 'en', 'ceb', 'other']
    """
    scripted = _SCRIPTED.fullmatch(label)
    return _codes().get(scripted[1], scripted[1]) if scripted else label


def known_labels(settings: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the labels that the annotator can write with these settings; None with a model of the user's."""
    if settings.get("model"):
        return None
    return frozenset((*_codes().values(), *_OTHER_LABELS.split(), UNDETERMINED, *settings.get("labels", {}).values()))


@cache
def _codes() -> dict[str, str]:
    return dict(pair.split(":") for pair in f"{_TWO_LETTERS} {_MEMBERS}".split())


def _lid176() -> tuple[Any, tuple[str, ...]]:
    from tasks.filters.pretrained import model_file

    return _load(str(model_file("lid.176.ftz")), 0)


def _model_at(path: str) -> tuple[Any, tuple[str, ...]]:
    return _load(path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0)


@lru_cache(maxsize=2)
def _load(path: str, modified: int) -> tuple[Any, tuple[str, ...]]:
    import fasttext

    from tasks.filters.learned.fasttext import labels_of

    labels = labels_of(path)
    return fasttext.load_model(path), labels
