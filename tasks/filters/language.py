"""Language of a document, of its paragraphs and of a sample of its lines, by a fastText model: lid.176, or another.

Reads the model that `python -m tasks.filters.pretrained` fetched, or the file of the setting `model` (GlotLID, OpenLID
and the like), on this machine or on the Hugging Face hub. Source: Joulin et al., "Bag of Tricks for Efficient Text
Classification", arXiv 1607.01759; model lid.176.ftz. Only the first 2,000 characters are classified: 4 times faster
than the whole text, with the same label on 98.5 % of pages. Accuracy of lid.176 by language:
`python -m benchmarks.classifiers languages`.

Models of this kind have learned from text in mixed case. A text mostly in capitals is classified in small letters:
lid.176 then recognizes 84 % of sentences in capitals, otherwise 37 %.

A language is identified by its ISO 639-1 code ("en") or, if it has none, by its ISO 639-3 code ("ceb"), like the labels
of lid.176. NLLB, OpenLID and GlotLID use ISO 639-3 with ISO 15924 ("eng_Latn") and have labels for individual
languages ("cmn", "arb", "zsm") of one ISO 639-1 code. Source of the codes: the tables of ISO 639-3 (SIL International)
with its macrolanguages.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import Field, PrivateAttr, field_validator

from tasks.core.clients import hub
from tasks.core.errors import InputError, TransientError
from tasks.filters import UNDETERMINED
from tasks.filters.base import Annotator, Filter, Measurements, Reasons, Threshold, fields

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch


_PREFIX = "__label__"
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

CONFUSABLE = tuple(
    group.split()
    for group in (
        *("bs hr sh sr", "id ms", "da nn no", "cs sk", "es gl pt", "zh yue wuu zh-Hans zh-Hant", "hi mr ne sa"),
        *("be ru uk", "bg mk", "af nl", "az tr"),
    )
)
"""Groups of languages that models confuse: reported by group, and no sign of a mixed document."""

_CLOSE = 0.5
"""A second label with at least this share of the first one's probability is close."""
_CANDIDATES = 3
"""Labels that are asked of the model, for the second language. Three take as long as one."""
_MIXED = 0.25
"""Share of other lines above which the report counts a document as mixed."""

_FIRST_LINES = 3
"""Lines that are judged of every document; the others only if one of these is in another language."""
_LINE_CHARS = 60
_SURE_OF_LINE = 0.6
"""Least probability with which a line is in another language. Of 17,600 lines of documents in one language 0.7 % reach
it, of verses in five others 91 %; with any probability it is 4 % and 96 %."""
_LEAST_LETTERS, _LEAST_SIGNS = 30, 10
"""Letters of a line that is judged; less in Chinese, Japanese and Korean."""

_SIGNS = ("HAN", "KANA", "HANGUL")
"""Scripts of which a letter says as much as three of Latin."""

_SCRIPT_OF = {
    code: script
    for script, codes in {
        "CYRILLIC": "be bg mk ru uk", "ARABIC": "ar ckb fa ps ug ur", "DEVANAGARI": "hi mr ne sa", "BENGALI": "as bn",
        "HAN": "zh yue wuu zh-Hans zh-Hant", "HEBREW": "he yi", "ETHIOPIC": "am ti", "TIBETAN": "bo dz", "KANA": "ja",
        "HANGUL": "ko", "GREEK": "el", "ARMENIAN": "hy", "GEORGIAN": "ka", "THAI": "th", "LAO": "lo", "KHMER": "km",
        "MYANMAR": "my", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "MALAYALAM": "ml", "SINHALA": "si",
        "GUJARATI": "gu", "GURMUKHI": "pa", "ORIYA": "or",
    }.items()
    for code in codes.split()
}  # fmt: skip
"""The script of languages that have one of their own, or share one that is not Latin."""
_SHARED = {script for script, number in Counter(_SCRIPT_OF.values()).items() if number > 1}


class _Prediction(NamedTuple):
    """Code and probability of the most probable language, and of the next one ("und" and 0 if there is none)."""

    label: str = UNDETERMINED
    score: float = 0.0
    second: str = UNDETERMINED
    second_score: float = 0.0


class LanguageLabels(Annotator):
    """Labels a document with its language (ISO 639-1 code, else ISO 639-3) and the model's probability.

    The label of a text without letters is "und", its score 0. `second` and `second_score` are the next language.
    `other_share` is the share of lines in another language than the label, among those that were judged (`lines`).
    """

    model: str = ""
    """A fastText model file: a path on the machine that annotates, or a file of a model of the Hugging Face hub
    ("hf://owner/name@revision/model.bin"), which each such machine fetches once and verifies; "" for lid.176, which has
    176 languages. Labels such as "eng_Latn" are converted to codes (see the module). The bytes of the file are part of
    the fingerprint."""

    labels: dict[str, str] = {}
    """Codes by label of the model, where they differ from the default code: `{zho_Hant = "zh-Hant"}`."""

    chars: int = Field(default=2000, ge=1)
    """Characters from the beginning of the text that are classified."""

    paragraphs: bool = False
    """Also label every paragraph (block between blank lines), with its position."""

    min_paragraph: int = Field(default=100, ge=1)
    """Paragraphs with fewer characters get no label, because short texts are not classified reliably."""

    lines: int = Field(default=16, ge=1, le=1000)
    """Lines, evenly spaced over the whole text, from which `other_share` is computed. Three are judged first, and
    the others only if one of these is in another language. Of a line 60 characters are read. It is judged if it has 30
    letters (10 in Chinese, Japanese and Korean)."""

    _model: Any = PrivateAttr(default=None)
    _codes: dict[str, str] = PrivateAttr(default_factory=dict)

    version: ClassVar[int] = 3

    places: ClassVar[bool] = True

    splits: ClassVar[tuple[str, ...]] = ()

    @field_validator("model")
    @classmethod
    def _address(cls, model: str) -> str:
        if hub.is_hub(model):
            try:
                hub.parse_model(model)
            except InputError as error:
                raise ValueError(str(error)) from None
        return model

    def external(self) -> list[str]:
        """Returns the model file if the settings name one; lid.176 is a fixed file."""
        return [self.model] if self.model else []

    def type(self) -> "pa.StructType":
        """See `Annotator.type`; `start` and `end` of a paragraph are in code points."""
        import pyarrow as pa

        label = [pa.field("label", pa.string(), nullable=False), pa.field("score", pa.float32(), nullable=False)]
        more = [pa.field("second", pa.string(), nullable=False), pa.field("second_score", pa.float32(), nullable=False)]
        more.append(pa.field("other_share", pa.float32(), nullable=False))
        bounds = [pa.field("start", pa.int32(), nullable=False), pa.field("end", pa.int32(), nullable=False)]
        paragraphs = pa.list_(pa.field("item", pa.struct([*bounds, *label]), nullable=False))
        nested = [pa.field("paragraphs", paragraphs, nullable=False)] if self.paragraphs else []
        return pa.struct([*label, *more, *nested])

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Loads the model; raises InputError when it is missing, invalid, or lacks a label of `labels`."""
        self._model, labels = _model_at(self.model) if self.model else _lid176()
        if unknown := sorted(set(self.labels) - set(labels)):
            similar = get_close_matches(unknown[0], labels) or labels[:3]
            raise InputError(
                f'{self.model or "lid.176"} has no label "{unknown[0]}", which language.labels names',
                f"name labels of the model (it has {len(labels)}), such as {', '.join(similar)}",
            )
        self._codes = {f"{_PREFIX}{label}": self.labels.get(label, code_of(label)) for label in labels}

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        predicted = self._predict([text[: self.chars] for text in batch.texts], _CANDIDATES)
        columns: dict[str, Any] = {name: [getattr(one, name) for one in predicted] for name in _Prediction._fields}
        columns["other_share"] = _OtherLines(self._predict, self.lines).shares(batch.texts, predicted)
        if self.paragraphs:
            columns["paragraphs"] = [self._paragraphs(text) for text in batch.texts]
        return columns

    def summary(self, column: "pa.StructArray") -> Mapping[str, int]:
        """Returns the documents whose second language is close, in all and by group of `CONFUSABLE`, and mixed ones.

        A document of two languages that no group has is in `close/other`.
        """
        import numpy as np

        measured = fields(column.drop_null())
        close = is_close(measured)
        pairs = zip(measured["label"][close], measured["second"][close], strict=True)
        found = Counter(_group_of(*pair) for pair in pairs)
        mixed = int(np.count_nonzero(measured["other_share"] > _MIXED))
        return {"close": int(close.sum()), "mixed": mixed} | {f"close/{name}": found[name] for name in sorted(found)}

    def _paragraphs(self, text: str) -> list[dict[str, Any]]:
        bounds, position = [], 0
        for block in text.split("\n\n"):
            if len(block) >= self.min_paragraph:
                bounds.append((position, position + len(block)))
            position += len(block) + 2
        found = self._predict([text[start:end][: self.chars] for start, end in bounds])
        return [
            {"start": start, "end": end, "label": one.label, "score": one.score}
            for (start, end), one in zip(bounds, found, strict=True)
        ]

    def _predict(self, texts: Sequence[str], candidates: int = 1) -> list[_Prediction]:
        """Returns the prediction for each text, from all of its characters.

        Args:
            texts: the texts.
            candidates: labels to ask of the model; with one there is no second language.
        """
        # fastText expects a single line, and stops at NUL.
        import numpy as np

        from tasks.filters.counting.scripts import letters_by_script

        lines = [" ".join(text.replace("\0", " ").split()) for text in texts]
        counts = letters_by_script(lines)
        letters, capitals = counts.sum(axis=(1, 2)), counts[:, 1].sum(axis=1)
        for row in np.flatnonzero(2 * capitals > letters).tolist():
            lines[row] = lines[row].lower()
        results = [_Prediction()] * len(lines)
        rows = np.flatnonzero(letters).tolist()
        found = self._model.predict([lines[row] for row in rows], k=candidates) if rows else ([], [])
        codes = self._codes
        for row, labels, scores in zip(rows, *found, strict=True):
            label = codes[labels[0]]
            results[row] = _Prediction(label, _probability(scores[0]))
            # Two labels may be one language, as "cmn_Hans" and "cmn_Hant" are.
            others = (place for place in range(1, len(labels)) if codes[labels[place]] != label)
            if place := next(others, 0):
                second = {"second": codes[labels[place]], "second_score": _probability(scores[place])}
                results[row] = results[row]._replace(**second)
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

    max_other_share: float = Field(default=1.0, ge=0, le=1)
    """Documents with a larger share of lines in another language are dropped as `language_mixed`; 1 keeps all."""

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        import numpy as np

        if self.keep:
            yield "language_other", ~np.isin(measured["label"].astype(str), self.keep)
        yield from super().reasons(measured)

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        yield Threshold("min_score", "language_unsure", "least", self.min_score, measured["score"])
        yield Threshold("max_other_share", "language_mixed", "most", self.max_other_share, measured["other_share"])


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


def _probability(score: float) -> float:
    return min(1.0, round(float(score), 4))  # it can exceed 1 by a rounding error


def _group_of(one: str, other: str) -> str:
    """Returns the name of the group of `CONFUSABLE` that two languages belong to, "other" if there is none.

    >>> _group_of("sr", "hr"), _group_of("en", "de")
    ('bs-hr-sh-sr', 'other')
    """
    return next(("-".join(group) for group in CONFUSABLE if one in group and other in group), "other")


def is_close(measured: Measurements) -> "NDArray[np.bool_]":
    """Returns whether the second language of each document is at least half as probable as its label, shape (n,)."""
    close: NDArray[np.bool_] = measured["second_score"] >= _CLOSE * measured["score"]
    return close & (measured["second_score"] > 0)


class _OtherLines:
    """Judges a sample of the lines of documents: is their language the label of the document?

    First by script: a line in a script other than that of the label is in another language, and one in a script of a
    single language (Thai, Hangul) in that language. The model is asked about the others only; a line is in another
    language if the model is sure of it, and the two are not of one group in `CONFUSABLE`.

    Args:
        predict: returns predictions for texts.
        lines: of a document.
    """

    def __init__(self, predict: Callable[[Sequence[str]], list[_Prediction]], lines: int) -> None:
        self._predict, self._lines = predict, lines
        first = min(_FIRST_LINES, lines)
        self._first = [(2 * number + 1) * lines // (2 * first) for number in range(first)]
        self._rest = sorted({*range(lines)} - {*self._first})

    def shares(self, texts: Sequence[str], predicted: Sequence[_Prediction]) -> list[float]:
        """Returns the share of lines in another language of each document; 0 if no line can be judged."""
        rows = [row for row, one in enumerate(predicted) if one.label != UNDETERMINED]
        others, judged = self._count(texts, predicted, rows, self._first)
        rows = [row for row in rows if others[row]]
        more, further = self._count(texts, predicted, rows, self._rest, self._first)
        pairs = zip(map(add, others, more), map(add, judged, further), strict=True)
        return [round(other / max(1, among), 4) for other, among in pairs]

    def _count(
        self,
        texts: Sequence[str],
        predicted: Sequence[_Prediction],
        rows: Sequence[int],
        places: Sequence[int],
        before: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Returns the numbers of lines in another language, and of judged lines, of each document.

        Args:
            texts: texts of all documents.
            predicted: their predictions.
            rows: the documents to look at; the others have none.
            places: numbers of the lines to look at.
            before: numbers of the lines that were looked at before; in a short text they are the same lines.
        """
        others, judged = [0] * len(texts), [0] * len(texts)
        owners, lines = [], []
        for row in rows:
            for line in self._sampled(texts[row], places, before):
                owners.append(row)
                lines.append(line)
        for row, is_other in zip(owners, self._are_other(lines, [predicted[row].label for row in owners]), strict=True):
            judged[row] += is_other is not None
            others[row] += bool(is_other)
        return others, judged

    def _sampled(self, text: str, places: Sequence[int], before: Sequence[int]) -> list[str]:
        """Returns the beginnings of the lines at evenly spaced places, without those at the places of `before`."""
        begins = dict.fromkeys(self._begin(text, place) for place in places)
        seen = {self._begin(text, place) for place in before}
        return [text[begin : begin + _LINE_CHARS].partition("\n")[0] for begin in begins if begin not in seen]

    def _begin(self, text: str, place: int) -> int:
        """Returns where the line at a place begins; of a long line, a part before the place."""
        at = (2 * place + 1) * len(text) // (2 * self._lines)
        least = max(0, at - _LINE_CHARS)
        return text.rfind("\n", least, at) + 1 or least

    def _are_other(self, lines: Sequence[str], labels: Sequence[str]) -> list[bool | None]:
        """Returns whether each line is in another language than its label; None if it has too few letters."""
        from tasks.filters.counting.scripts import letters_by_script, main_scripts

        counts = letters_by_script(lines).sum(axis=1)
        results: list[bool | None] = [None] * len(lines)
        asked = []
        for row, (script, letters) in enumerate(zip(main_scripts(counts), counts.sum(axis=1).tolist(), strict=True)):
            if letters < (_LEAST_SIGNS if script in _SIGNS else _LEAST_LETTERS):
                continue
            own = _SCRIPT_OF.get(labels[row])
            if own is None or (own == script and own in _SHARED) or (own, script) == ("KANA", "HAN"):
                asked.append(row)
            else:
                results[row] = own != script
        for row, found in zip(asked, self._predict([lines[row] for row in asked]), strict=True):
            is_same = found.label == labels[row] or _group_of(found.label, labels[row]) != "other"
            results[row] = not is_same and found.score >= _SURE_OF_LINE
        return results


def _lid176() -> tuple[Any, tuple[str, ...]]:
    from tasks.filters.pretrained import model_file

    return _loaded(str(model_file("lid.176.ftz")), 0)


def _model_at(address: str) -> tuple[Any, tuple[str, ...]]:
    if hub.is_hub(address):
        return _loaded(_hub_copy(address), 0)  # a copy has the hash in its name; its time is that of its last use
    return _loaded(address, os.stat(address).st_mtime_ns if os.path.exists(address) else 0)


def _hub_copy(address: str) -> str:
    """Returns the path of the verified copy of a file of the hub on this machine."""
    try:
        path, file = _stated(address)
        return hub.local_copy(path, file.bytes, file.digest)
    except TransientError as error:
        remedy = "if this machine has no network, copy the file to it, and name its path in"
        raise TransientError(error.cause, f"{remedy} annotate.settings.language.model") from None


@lru_cache(maxsize=2)
def _stated(address: str) -> tuple[hub.HubPath, hub.HubFile]:
    """Returns a file at a commit, and what the hub states about it; asks once per process."""
    path = hub.parse_model(address)
    path = path._replace(revision=hub.commit_of(path))
    return path, hub.model_file(path)


_LOADING = threading.Lock()


def _loaded(path: str, modified: int) -> tuple[Any, tuple[str, ...]]:
    # fastText reads a model into the memory of the process: two threads of a worker must not load it twice.
    with _LOADING:
        return _load(path, modified)


@lru_cache(maxsize=2)
def _load(path: str, modified: int) -> tuple[Any, tuple[str, ...]]:
    import fasttext

    from tasks.filters.learned.fasttext import labels_of

    labels = labels_of(path)
    return fasttext.load_model(path), labels
