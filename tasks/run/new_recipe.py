"""`init`: writes the recipe of a new corpus from what is in a folder, in a file, or at a URL.

Reads names and sizes of all files, and the beginnings of some of them. Writes one TOML file, which states what was
found and sets only what differs from the defaults. The recipe extends no other one: everything that it does is in the
file or in the defaults of the stages.

Each file suffix, in any case, becomes a source, since a source has one pattern. The format is that of the suffix. Of
files of rows, the field with the texts is the one with the longest strings, unless a field has a usual name. Numbers of
documents and tokens, on which held-out documents and steps depend, are estimated from these beginnings.
"""

import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from tasks.core import parquet
from tasks.core.errors import InputError, RecipeError
from tasks.formats.documents.external_files import CODECS, SourceFile, find
from tasks.formats.documents.json_rows import detect_form, open_text, rows
from tasks.formats.documents.parquet_rows import read_rows
from tasks.formats.documents.text import clean
from tasks.run.recipe import RECIPES, Recipe
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.guard import ExtractionGuard
from tasks.stages.extract.parser import OWN, missing_extra
from tasks.stages.extract.row import Content
from tasks.stages.extract.sources import InputUnit
from tasks.stages.tokens import EncodeConfig

_KINDS = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".org", ".tex"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".warc", ".wet", ".arc", ".wacz"), "warc"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".parquet": "parquet",
    ".pdf": "pdf",
    ".epub": "epub",
    ".docx": "docx",
}
_CODE = frozenset(
    f".{name}"
    for name in (
        *("c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "java", "jl", "js", "jsx", "kt", "lua", "php", "pl", "py"),
        *("r", "rb", "rs", "scala", "sh", "sql", "swift", "ts", "tsx"),
    )
)
_PACKED = frozenset(CODECS) | {".zip"}

_TEXT_FIELDS = ("text", "content", "body", "article", "document", "markdown", "raw_content")
_URL_FIELDS = ("url", "uri", "link", "source_url", "canonical_url", "permalink")

_UNITS = ("B", "kB", "MB", "GB", "TB")

_FILES, _ROWS = 40, 200
"""Number of files and of rows whose beginnings are read, for each suffix."""
_ARCHIVES, _CAPTURES = 8, 128
"""Number of archives, and of captures in all of them, that are read for each suffix."""
_HEAD = 4_000
_LONG = 200
"""Mean length of a field, in characters, from which it may be a text."""
_LONGEST_ROW = 1 << 20
_MAIN_SHARE = 0.5
_TOKEN_BYTES = 4
"""Bytes of text per token of a small vocabulary, for estimates."""
_UNPACKED = 4
"""Bytes of text per byte of a compressed file, for estimates."""
_STORED = {"pdf": 25, "epub": 2, "docx": 5, "html": 30}
"""Bytes of a file per byte of its text, for estimates: most of a PDF file are pictures and fonts, of a page markup."""
_WITH_PICTURES = 100_000_000
"""Maximum bytes of a file with text, pictures and fonts."""
_HELDOUT = 30
"""Held-out documents of a small corpus: with fewer, the loss on them says little."""
_FEWEST = 10
"""Number of documents of which `encode` holds out at least one."""
_TOKENS_PER_STEP = 2_048
_STEPS = 100, 600
_EPOCHS = 4

_CODE_LIMITS = """\
# The limits for prose would reject most code: few stop words, many symbols.
[consolidate.limits.{source}.gopher_quality]
min_letters = 0.25
max_mean_word = 15
min_stop_words = 0
max_symbol_share = 0.2

[consolidate.limits.{source}.gopher_repetition]
max_duplicate_lines = 0.5
max_duplicate_line_chars = 0.4
max_duplicate_ngram = {{ 5 = 0.35, 10 = 0.3 }}
"""

_MARKUP = frozenset({".md", ".markdown", ".rst"})

_MARKUP_LIMITS = """\
# Tables, listings and links of markup have as many symbols as letters; for plain prose remove this.
[consolidate.limits.{source}.gopher_quality]
min_letters = 0.5
"""

_PDF_LIMITS = """\
# Formulas, tables and references have as many symbols as letters.
[consolidate.limits.pdf.gopher_quality]
min_letters = 0.5
"""

_SPANS = """\
# 4 bytes per token, with which `explain` finds the pages and steps behind a text.
[spans]
enabled = true
"""

_PLACE = """\
# Where it runs; not part of any fingerprint. `make up` sets these variables.
[place]
store = "${SLUICE_STORE:-.sluice/store}"
mlflow = "${MLFLOW_TRACKING_URI:-}"

[place.dask]
address = "${SLUICE_DASK:-}"
"""


@dataclass(frozen=True)
class FoundFiles:
    """Files of one suffix, which become one source.

    Attributes:
        suffix: including that of the packing, ".jsonl.gz".
        kind: `kind` of the file source.
        path: its pattern.
        files: number of files.
        size: their bytes as stored.
        documents: number of documents; estimated, if a file can have several.
        text_bytes: estimated bytes of text.
        text_field: of rows: the field with the texts; "" if none has long strings.
        url_field: of rows: the field with URLs, or "".
        languages: number of texts by language, of those that were read.
    """

    suffix: str
    kind: str
    path: str
    files: int
    size: int
    documents: int
    text_bytes: int
    text_field: str = ""
    url_field: str = ""
    languages: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        """Name of the source: its suffix."""
        return self.suffix.strip(".").replace(".", "-").lower()

    @property
    def is_code(self) -> bool:
        """Whether the files are source code."""
        return self.suffix.lower() in _CODE

    def summary(self) -> str:
        """Returns one line: number of files, size, documents, fields and languages."""
        parts = [f"{self.files:,} {self.suffix} file{'s' if self.files > 1 else ''}, {_size(self.size)}"]
        if self.kind not in ("text", *_STORED):
            parts.append(f"about {_rounded(self.documents)} document{'s' if self.documents > 1 else ''}")
        if self.text_field:
            parts.append(f'texts in "{self.text_field}"' + (f', URLs in "{self.url_field}"' if self.url_field else ""))
        if self.languages:
            total, most = sum(self.languages.values()), Counter(self.languages).most_common(3)
            parts.append("languages " + ", ".join(f"{name} {count / total:.0%}" for name, count in most))
        return "; ".join(parts)


@dataclass(frozen=True)
class NewRecipe:
    """A recipe that was written.

    Attributes:
        path: its file.
        recipe: its settings.
        found: what it is about, one line each.
        unread: numbers of files by suffix that no source reads; the suffix names the extra that would read them.
    """

    path: Path
    recipe: Recipe
    found: tuple[str, ...]
    unread: Mapping[str, int]

    def text(self) -> str:
        """Returns what was found, and the next commands."""
        name = self.recipe.name
        lines = [f"wrote {self.path}", *(f"  {line}" for line in self.found)]
        if self.unread:
            lines.append(f"  not read: {_counts(self.unread)}")
        return "\n".join(
            [
                *lines,
                f"in Airflow: make up, then trigger {name}.{self.recipe.parts[0]}; the later DAGs follow",
                f"in a shell: sluice cycle --recipe {name}",
                f"afterwards, what a training step read: sluice trace --recipe {name} step:0",
            ]
        )


def new_recipe(what: str, name: str = "", contact: str = "") -> NewRecipe:
    """Writes a recipe for a folder, a file or a site, into the folder of recipes.

    Args:
        what: a folder or a file, on this machine or on an object store (s3://bucket/folder/); or the URL of a site.
        name: name of the recipe; "" for that of the folder, file or host.
        contact: of a crawl: a page or mailto: address for webmasters.

    Raises:
        InputError: there is nothing to read, or the recipe exists.
        RecipeError: the name or the contact is missing or invalid.
    """
    is_site = what.startswith(("http://", "https://"))
    if not is_site and "://" not in what:
        what = os.path.abspath(os.path.expanduser(what))
    name = name or _plain(urlsplit(what).hostname or "" if is_site else Path(what.rstrip("/")).stem)
    path = Path(os.environ.get("SLUICE_RECIPES", RECIPES)) / f"{name}.toml"
    if is_site:
        return NewRecipe(path, _write(path, _site(what, name, contact)), (what,), {})
    groups, unread = look_at(what)
    recipe = _write(path, _corpus(groups, name, unread))
    found = [group.summary() for group in groups]
    if sum(group.documents for group in groups) < _FEWEST:
        found.append(f"few documents: a model needs about {_FEWEST}, since some are held out to measure it")
    return NewRecipe(path, recipe, tuple(found), unread)


def _write(path: Path, text: str) -> Recipe:
    """Writes the file, which must not exist, and reads it; a recipe that cannot be read is removed."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists", "choose another --name, or remove the file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})", "set SLUICE_RECIPES to a folder") from None
    try:
        return Recipe.load(path)
    except RecipeError:
        path.unlink()
        raise


def look_at(what: str) -> tuple[list[FoundFiles], dict[str, int]]:
    """Returns the files of a folder or a file by suffix, the largest first; and the numbers of those of no known kind.

    Raises:
        InputError: it does not exist, or contains no file of a known kind.
    """
    pattern, files = _files(what)
    by_suffix: dict[str, list[SourceFile]] = {}
    for file in files:
        by_suffix.setdefault(_suffix(file.name).lower(), []).append(file)
    groups = [
        _group(suffix, kind, members, pattern)
        for suffix, members in sorted(by_suffix.items())
        if (kind := _kind(suffix))
    ]
    unread = {_unread(suffix): len(by_suffix[suffix]) for suffix in sorted(by_suffix) if not _kind(suffix)}
    if not groups:
        known = ", ".join(sorted(_KINDS))
        raise InputError(f"{what} has no file to read, but {_counts(unread)}", f"files are known by suffix: {known}")
    return sorted(groups, key=lambda group: -group.text_bytes), unread


def _files(what: str) -> tuple[str, list[SourceFile]]:
    """Returns the pattern of the files, which ends with `*` for those of a folder; and the files."""
    if "://" not in what:
        if not os.path.exists(what):
            raise InputError(f"there is no {what}", "name a folder, a file, or the URL of a site")
        is_folder, fixed = os.path.isdir(what), glob.escape(what)
    else:
        is_folder, fixed = what.endswith("/"), what.rstrip("/")
    pattern = f"{fixed}/**/*" if is_folder else fixed
    return pattern, find(pattern, what)


def _group(suffix: str, kind: str, files: Sequence[SourceFile], pattern: str) -> FoundFiles:
    ends = sorted({_suffix(file.name) for file in files})
    path = f"{pattern}{ends[0] if len(ends) == 1 else _any_case(suffix)}" if pattern.endswith("*") else pattern
    size = sum(file.bytes for file in files)
    found = partial(FoundFiles, suffix, kind, path, len(files), size)
    if kind in _STORED:
        return found(len(files), size * _unpacked(suffix) // _STORED[kind])
    if kind == "text":
        texts = [] if suffix.lower() in _CODE else [_head(file) for file in _spread(files)]
        return found(len(files), size * _unpacked(suffix), languages=_languages(texts))
    if kind == "warc":
        fields, (texts, documents) = ("", ""), _captures(_spread(files, _ARCHIVES))
    else:
        fields, texts, documents = _row_texts(next((file for file in files if file.bytes), files[0]), kind)
    documents *= size
    mean = fmean(len(text.encode("utf-8", "replace")) for text in texts) if texts else 0
    languages = _languages([text[:_HEAD] for text in texts])
    return found(max(1, round(documents)), round(documents * mean), *fields, languages)


def _unpacked(suffix: str) -> int:
    """Returns the estimated bytes of a file per byte as stored."""
    return _UNPACKED if os.path.splitext(suffix)[1].lower() in _PACKED else 1


def _row_texts(file: SourceFile, kind: str) -> tuple[tuple[str, str], list[str], float]:
    """Returns the fields of text and URL, the texts of the first rows, and the rows per byte of a file as stored."""
    sample = list(itertools.islice(_rows(file, kind), _ROWS))
    fields = _text_field(sample), _url_field(sample)
    texts = [text for row in sample if isinstance(text := row.get(fields[0]), str)]
    if kind == "parquet":
        rows = float(parquet.metadata(file.local()).num_rows)
    elif len(sample) < _ROWS:
        rows = len(sample)
    else:
        length = fmean(len(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")) for row in sample)
        rows = file.bytes * _unpacked(file.name) / length
    return fields, texts, rows / max(1, file.bytes)


def _captures(files: Sequence[SourceFile]) -> tuple[list[str], float]:
    """Returns the texts of the first captures of some archives, and the documents per byte of the files as stored."""
    config, texts, read = ExtractConfig(), [], 0
    most = _CAPTURES // len(files)
    for file in files:
        unit = InputUnit(file, FileSource(name="warc", kind="warc", path=file.path))
        rows = list(itertools.islice(read_unit(unit, config), most))
        outcomes = ExtractionGuard(config.max_page_cpu_s).outcomes(rows)
        texts += [one.text for _, one in outcomes if isinstance(one, Content) and len(one.text) >= config.min_chars]
        ends = {row.warc_file: row.warc_offset or 0 for row in rows}  # a WACZ file has several
        read += sum(ends.values()) if len(rows) == most else file.bytes
    return texts, len(texts) / max(1, read)


def _spread(files: Sequence[SourceFile], most: int = _FILES) -> Sequence[SourceFile]:
    """Returns some of the files, evenly over their names."""
    return files[:: max(1, len(files) // most)][:most]


def _head(file: SourceFile) -> str:
    with file.open() as stream:
        return stream.read(_HEAD).decode("utf-8", "replace")


def _rows(file: SourceFile, kind: str) -> Iterator[Mapping[str, Any]]:
    """Yields rows from the beginning of a file; rows that are not JSON objects are left out."""
    with ExitStack() as stack, file.readable():
        if kind == "parquet":
            yield from read_rows(file.local())
            return
        form = detect_form(file.local(), file.name)
        text = stack.enter_context(open_text(file.local(), form))
        for row in rows(text, form, _LONGEST_ROW):
            try:
                value = json.loads(row or b"null")
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def _text_field(sample: Sequence[Mapping[str, Any]]) -> str:
    """Returns the field with a usual name, else the one with the longest strings; "" if there are no long strings."""
    lengths: dict[str, list[int]] = {}
    for row in sample:
        for name, value in row.items():
            if isinstance(value, str):
                lengths.setdefault(name, []).append(len(value))
    means = {name: fmean(values) for name, values in lengths.items()}
    if usual := [name for name in _TEXT_FIELDS if name in means]:
        return max(usual, key=lambda name: (means[name] >= _LONG, -_TEXT_FIELDS.index(name)))
    longest = max(means, key=lambda name: means[name], default="")
    return longest if longest and means[longest] >= _LONG else ""


def _url_field(sample: Sequence[Mapping[str, Any]]) -> str:
    urls = (name for name in _URL_FIELDS if any(str(row.get(name)).startswith("http") for row in sample))
    return next(urls, "")


def _languages(texts: Sequence[str]) -> Mapping[str, int] | None:
    """Returns the number of texts by language; None without texts or without the model of `make models`."""
    from tasks.filters.base import fields
    from tasks.filters.batch import DocumentBatch
    from tasks.filters.language import LanguageLabels

    annotator = LanguageLabels()
    try:
        annotator.prepare({})
    except InputError:
        return None
    cleaned = [text for text in map(clean, texts) if text]
    if not cleaned:
        return None
    return Counter(map(str, fields(annotator.annotate(DocumentBatch(cleaned)))["label"]))


def _corpus(groups: Sequence[FoundFiles], name: str, unread: Mapping[str, int]) -> str:
    """Returns the recipe of files."""
    sections = [
        f"# A model from the files below. Settings that are not here have their defaults.\nname = {_toml(name)}\n"
    ]
    if unread:
        sections.append(f"# Not read: {_counts(unread)}.\n")
    sections += [_source(group) for group in groups]
    sections += [_CODE_LIMITS.format(source=group.name) for group in groups if group.is_code]
    sections += [_MARKUP_LIMITS.format(source=group.name) for group in groups if group.suffix.lower() in _MARKUP]
    if any(group.kind == "pdf" for group in groups):
        sections.append(_PDF_LIMITS)
    sections += [_language_comment(groups), _heldout(sum(group.documents for group in groups))]
    sections += [_training(sum(group.text_bytes for group in groups)), _SPANS, _PLACE]
    return "\n".join(section for section in sections if section)


def _source(group: FoundFiles) -> str:
    lines = [f"# {group.summary()}", "[[extract.files]]", f"name = {_toml(group.name)}", f"kind = {_toml(group.kind)}"]
    lines.append(f"path = {_toml(group.path)}")
    if group.kind in OWN:
        lines.append(f"max_file_bytes = {_WITH_PICTURES} # with pictures and fonts")
    if group.kind in ("jsonl", "parquet"):
        if not group.text_field:
            lines.append('text_field = "text" # no field has long strings: name the one with the texts')
        elif group.text_field != "text":
            lines.append(f"text_field = {_toml(group.text_field)}")
        if group.url_field not in ("", "url"):
            lines.append(f"url_field = {_toml(group.url_field)}")
    return "\n".join(lines) + "\n"


def _language_comment(groups: Sequence[FoundFiles]) -> str:
    languages = sum((Counter(group.languages or {}) for group in groups), Counter[str]())
    (main, count), *others = languages.most_common() or [("", 0)]
    if not others or count < _MAIN_SHARE * languages.total():
        return ""
    share = f"{count / languages.total():.0%}"
    setting = f"# [consolidate.limits.language]\n# keep = [{_toml(main)}]\n"
    return f"# {share} of the texts are {main}; to drop the others:\n{setting}"


def _heldout(documents: int) -> str:
    """Returns the section [encode] of a corpus that is too small for the default share of held-out documents."""
    share = min(0.25, _HELDOUT / documents)
    if share <= EncodeConfig().heldout_share:
        return ""
    comment = f"# The default share would leave few of about {_rounded(documents)} documents to measure the model."
    return f"{comment}\n[encode]\nheldout_share = {share:.2g}\n"


def _training(text_bytes: int) -> str:
    """Returns the section [train]: at most four epochs, and at most the steps that two cores take in minutes."""
    tokens = text_bytes // _TOKEN_BYTES
    steps = min(max(tokens * _EPOCHS // _TOKENS_PER_STEP, _STEPS[0]), _STEPS[1])
    return (
        "# A first small model, in minutes on two cores. "
        f"The corpus has about {_rounded(tokens)} tokens before filtering.\n"
        f"# `sluice plan` estimates memory and time of a larger model.\n[train]\nsteps = {steps}\n"
    )


def _site(url: str, name: str, contact: str) -> str:
    """Returns the recipe of a crawl."""
    host = urlsplit(url).hostname or ""
    local = host == "localhost" or host.endswith(".localhost") or host.startswith("127.")
    if not contact and not local:
        raise RecipeError(
            "a crawl needs a contact, which is sent with every request",
            "add --contact with a page about your crawl, or mailto:name@host",
        )
    address = [f"contact = {_toml(contact)}"] if contact else []
    lines = [
        "# A model from the pages of a site. Settings that are not here have their defaults.",
        f"name = {_toml(name)}",
        '# schedule = "0 3 1 * *" # a cycle every month; the later DAGs follow by Assets',
        "",
        "[crawl]",
        f"seeds = [{_toml(url)}] # only their hosts are crawled; include_hosts adds others",
        *(["allow_loopback = true"] if local else address),
        "max_pages = 300 # a first look: five minutes at one request per second",
        "recrawl = true # a later version fetches only new and due pages",
        "",
        "[dedup_index]",
        "enabled = true # a cycle publishes only documents that no earlier one has published",
        "",
        "# A first small model, in minutes on two cores. `sluice plan` estimates a larger one.",
        "[train]",
        f"steps = {_STEPS[1]}",
        "",
    ]
    return "\n".join([*lines, _SPANS, _PLACE])


def _suffix(name: str) -> str:
    """Returns the suffix of a file name, with that of the format before that of the packing.

    >>> [_suffix(name) for name in ("a/b.jsonl.gz", "notes.v2.txt", "README")]
    ['.jsonl.gz', '.txt', '']
    """
    stem, last = os.path.splitext(os.path.basename(name))
    return os.path.splitext(stem)[1] + last if last in _PACKED else last


def _any_case(suffix: str) -> str:
    """Returns a glob for a suffix in any case.

    >>> _any_case(".7z")
    '.7[zZ]'
    """
    return "".join(f"[{char}{char.upper()}]" if char.isalpha() else char for char in suffix)


def _kind(suffix: str) -> str:
    """Returns the kind of a file source for a suffix, "" for none. Only files of rows may be zip files."""
    kind, last = _stated_kind(suffix)
    packed = last in _PACKED and kind != "parquet" and (last != ".zip" or kind == "jsonl")
    return kind if (not last or packed) and not _missing_extra(kind) else ""


def _stated_kind(suffix: str) -> tuple[str, str]:
    """Returns the kind of the first part of a suffix, "" for none; and its second part."""
    stem, last = os.path.splitext(suffix.lower()) if suffix.count(".") > 1 else (suffix.lower(), "")
    return "text" if stem in _CODE else _KINDS.get(stem, ""), last


def _missing_extra(kind: str) -> str:
    return missing_extra(kind) if kind in OWN else ""


def _unread(suffix: str) -> str:
    """Returns what to call files that no source reads."""
    extra = _missing_extra(_stated_kind(suffix)[0])
    return f"{suffix} (needs sluice[{extra}])" if extra else suffix or "no suffix"


def _plain(word: str) -> str:
    """Returns a name of a recipe: lower case, letters, digits and "-", beginning with a letter.

    >>> _plain("My Notes (2026)"), _plain("docs.example.org"), _plain("2026")
    ('my-notes-2026', 'docs-example-org', 'corpus-2026')
    """
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
    return name if name[:1].isalpha() else f"corpus-{name}".strip("-")


def _toml(text: str) -> str:
    """Returns a string as TOML, whose basic strings have the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {suffix}" for suffix, count in counts.items()) or "nothing"


def _rounded(count: int) -> str:
    """Returns an estimate with two digits.

    >>> _rounded(19), _rounded(412_629), _rounded(2_960_000)
    ('19', '410,000', '3.0 million')
    """
    rounded = round(count, min(0, 2 - len(str(count))))
    return f"{rounded:,}" if rounded < 1_000_000 else f"{rounded / 1e6:,.{1 if rounded < 1e7 else 0}f} million"


def _size(size: int) -> str:
    power = next((power for power in range(4) if size < 1000 ** (power + 1)), 4)
    return f"{size / 1000**power:.3g} {_UNITS[power]}"
