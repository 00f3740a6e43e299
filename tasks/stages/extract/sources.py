"""The sources of a recipe, and their files: those of the crawl, of `[[extract.files]]`, of streams and of archives.

Reads names and sizes of external files, and the records of the input artifacts. Datasets of the hub and tables are
listed at the commit or snapshot that the run has resolved. A unit of input is one file, or a piece of a file of rows
(`partitioning`).
"""

import fnmatch
import logging
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.core.artifact import EXTERNAL, Artifact, ArtifactId, FileEntry, InputRef
from tasks.core.clients import hub
from tasks.core.config import sha256_of_json
from tasks.core.errors import InputError, NothingNewError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.documents.external_files import DatasetFiles, SourceFile, find
from tasks.formats.documents.text import hash64
from tasks.formats.hooks import External
from tasks.formats.lakes import FORMATS
from tasks.formats.warc.archive import CAPTURES, warc_files
from tasks.stages.extract.config import (
    FILES,
    LICENSE,
    PLACEHOLDERS,
    WARC,
    WEB,
    ArchiveFiles,
    ExtractConfig,
    FileSource,
    MessageFiles,
    Topic,
)

log = logging.getLogger("sluice.extract")

PARQUET_KINDS = ("parquet", *FORMATS)
ROW_KINDS = ("jsonl", *PARQUET_KINDS)
"""Kinds of sources whose files hold one document per row."""

# Compressed pages decompress to about four times their size, and extraction takes longer than reading text.
PACKED_WEIGHT = 4


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file of rows.

    Attributes:
        first: number of its first row in the file, from 0; for JSON lines the line number.
        start: first byte of the text in UTF-8, or first row group.
        end: end of the piece, exclusive, in the unit of `start`.
        weight: uncompressed size in bytes.
        streamed: whether the bytes before the piece must be read first.
    """

    first: int
    start: int
    end: int
    weight: int
    streamed: bool = False


@dataclass(frozen=True)
class CrawledFile:
    """A WARC file of the crawl.

    Attributes:
        store: store of the crawl, which has the file at `SourceFile.path`.
        records: number of its captures.
        index: path of its CDXJ index, or "".
    """

    store: Store
    records: int
    index: str


@dataclass(frozen=True)
class InputUnit:
    """One input file, or a piece of it.

    Attributes:
        file: the file.
        source: source of the file.
        piece: the piece of the file; None for the whole file.
        crawl: what the crawl has recorded about a file of its own; None for other files.
    """

    file: SourceFile
    source: FileSource
    piece: FilePiece | None = None
    crawl: CrawledFile | None = None

    @property
    def weight(self) -> int:
        """Input bytes as counted for `ExtractConfig.part_bytes`; at least 1."""
        if self.piece is not None:
            return max(1, self.piece.weight)
        packed = self.source.kind in (WARC, *PARQUET_KINDS) or self.file.is_packed
        return max(1, self.file.bytes * (PACKED_WEIGHT if packed else 1))

    @property
    def stream(self) -> str:
        """Path of the file if the unit is a piece whose preceding bytes must be read first, otherwise ""."""
        return self.file.path if self.piece is not None and self.piece.streamed else ""


def input_units(config: ExtractConfig, inputs: Inputs, output: ArtifactId) -> list[InputUnit]:
    """Returns the whole files of all sources: of the crawl, then of files, streams and archives.

    Raises:
        NothingNewError: the recipe has streams, and there is no new message and no other input.
        InputError: there is no input, or the files of a source cannot be listed.
    """
    units = [*_crawl_units(inputs), *_file_units(config, inputs, output), *_fetched_units(config, inputs)]
    if not units and "messages" in inputs:
        raise NothingNewError(f"{output}: there is no new message, and no WARC file or local file")
    if not units:
        raise InputError(f"{output}: there is no WARC file and no local file", "crawl first, or add [[extract.files]]")
    return units


def _crawl_units(inputs: Inputs) -> Iterator[InputUnit]:
    if warc := inputs.get("warc"):
        source = FileSource(name=WEB, kind=WARC, path=warc.store.url(warc.path))
        for file in warc_files(warc):
            crawl = CrawledFile(warc.store, file.records, file.index)
            yield InputUnit(SourceFile(file.path, file.path, file.bytes), source, crawl=crawl)


def _file_units(config: ExtractConfig, inputs: Inputs, output: ArtifactId) -> Iterator[InputUnit]:
    for source in _pinned(config, inputs):
        ref = inputs.external.get(_role(source))
        files, unmatched = select_files(source, ref.content if ref and source.table() else "")
        for glob in unmatched:
            log.warning('[%s] exclude of "%s": the glob "%s" matches no file', output, source.name, glob)
        yield from (InputUnit(file, source) for file in files)


def _fetched_units(config: ExtractConfig, inputs: Inputs) -> Iterator[InputUnit]:
    """Yields the files that the stages `stream` and `archive` have written."""
    if messages := inputs.get("messages"):
        for stream in config.streams:
            fields = stream.model_dump(exclude={*Topic.model_fields} - {"name"})
            files = MessageFiles(kind="jsonl", path=messages.store.url(messages.path), **fields)
            for entry in _files_in(messages, f"messages/{stream.name}/"):
                place = messages.store.url(messages.place(entry))
                yield InputUnit(SourceFile(place, entry.path, entry.bytes), files)
    if archived := inputs.get("archived"):
        for archive in config.archives:
            captures = ArchiveFiles(name=archive.name, kind=WARC, path=archived.store.url(archived.path))
            for entry in _files_in(archived, f"{CAPTURES}{archive.name}/"):
                place = archived.place(entry)  # documents name it, so it is where the bytes are
                yield InputUnit(SourceFile(archived.store.url(place), place, entry.bytes), captures)


def _files_in(artifact: Artifact, folder: str) -> list[FileEntry]:
    return sorted(artifact.entries(folder), key=lambda entry: entry.path)


def external(config: ExtractConfig) -> dict[str, External]:
    """Returns the sources from outside the store, by role `files:<source>`."""
    return {_role(source): _external(source) for source in config.files}


def _external(source: FileSource) -> External:
    """Returns the local paths of a source, or the dataset or the table that it is."""
    if hub.is_hub(source.path):
        return DatasetFiles(source.path, lambda path: find_files(source.model_copy(update={"path": path})))
    return source.table() or [file.local() for file in find_files(source)]


def _role(source: FileSource) -> str:
    return f"{FILES}{source.name}"


def _pinned(config: ExtractConfig, inputs: Inputs) -> Iterator[FileSource]:
    """Yields the file sources, datasets at the commit that the run has resolved."""
    for source in config.files:
        ref = inputs.external.get(_role(source))
        if ref is not None and hub.is_hub(source.path):
            yield source.model_copy(update={"path": ref.address.removeprefix(EXTERNAL)})
        else:
            yield source


def license_refs(config: ExtractConfig, inputs: Inputs) -> tuple[InputRef, ...]:
    """Returns what the cards of datasets state as their license, for the record; not part of the fingerprint."""
    refs = []
    for source in _pinned(config, inputs):
        if hub.is_hub(source.path) and (stated := hub.license_of(hub.parse(source.path))):
            digest = sha256_of_json(stated)
            address = f"{EXTERNAL}{stated}"
            refs.append(InputRef(role=f"{LICENSE}{source.name}", address=address, fingerprint=digest, content=digest))
    return tuple(refs)


def find_files(source: FileSource) -> list[SourceFile]:
    """Returns the files of a source in name order; of a table, those of its snapshot.

    Raises:
        InputError: the pattern matches no file, all files are excluded, or the table cannot be read.
        StoreError, TransientError: the object store of the pattern cannot be used, or does not respond.
    """
    return select_files(source)[0]


def select_files(source: FileSource, identity: str = "") -> tuple[list[SourceFile], list[str]]:
    """Returns the files of a source in name order, and the globs of `exclude` that match none; see `find_files`.

    Args:
        source: the source.
        identity: the snapshot of its table; "" for the one that the settings name.
    """
    if table := source.table():
        files: list[SourceFile] = [*table.snapshot(identity or table.current()).files]
    else:
        pattern = source.path
        for placeholder, name in PLACEHOLDERS.items():
            pattern = pattern.replace(placeholder, sysconfig.get_path(name))
        files = find(pattern, f'the file source "{source.name}"')
    matches = {glob: {file.name for file in files if fnmatch.fnmatch(file.name, glob)} for glob in source.exclude}
    excluded = set[str]().union(*matches.values())
    included = [file for file in files if file.name not in excluded]
    if not included:
        raise InputError(f'the file source "{source.name}" excludes all {len(files)} files', "correct its exclude")
    unmatched = [glob for glob, names in matches.items() if not names]
    return sorted(_sample(included, source), key=lambda file: file.name), unmatched


def _sample(files: list[SourceFile], source: FileSource) -> list[SourceFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, the same on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    sample, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        sample.append(file)
    return sample or ordered[:1]
