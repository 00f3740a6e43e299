"""Origins of token shards that accumulate versions: from which documents each part was made.

Reads and writes `origins.json` of an encoding: part -> {documents, part}, the artifact and the part of it. Only shards
with `[encode] accumulate` have it. The names of their parts begin with the number of the version that made them, from 1
on, so that no two versions have a part of the same name.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.part import Part
from tasks.formats.documents.text import hashes64
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.marks import rows_by_shard

FILE = "origins.json"
_PREFIX = "v"


class Origin(Config):
    """The documents of one part: the address of their artifact, and the name of its part."""

    documents: str
    part: str


Origins = Mapping[str, Origin]
"""Origin of each part of documents, by the name of the part of the shards."""


def part_name(version: int, name: str) -> str:
    """Returns the name of a part of the shards.

    >>> part_name(2, "part-00000-of-00004")
    'v00002-part-00000-of-00004'
    """
    return f"{_PREFIX}{version:05d}-{name}"


def version_of(part: str) -> int:
    """Returns the number of the version that made a part; 1 for parts of shards that do not accumulate.

    >>> version_of("v00002-part-00000-of-00004"), version_of("part-00000-of-00004")
    (2, 1)
    """
    return int(part.removeprefix(_PREFIX).partition("-")[0]) if part.startswith(_PREFIX) else 1


def versions_in(origins: Origins) -> int:
    """Returns the number of versions in accumulated shards; 0 without parts."""
    return max(map(version_of, origins), default=0)


def write_origins(part: Part, origins: Origins) -> None:
    """Writes FILE."""
    content = {name: origin.model_dump() for name, origin in origins.items()}
    part.write(FILE, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")


def accumulates(shards: Artifact) -> bool:
    """Returns whether shards have the documents of several versions."""
    return FILE in shards.files(FILE)


def read_origins(shards: Artifact) -> dict[str, Origin]:
    """Returns the origins of accumulated shards.

    Raises:
        InputError: the shards do not accumulate.
    """
    if not accumulates(shards):
        raise InputError(
            f"{shards.address} was made without [encode] accumulate, so that its parts cannot be taken over",
            "begin with a version that accumulates under another recipe name, or remove the setting",
        )
    return {name: Origin.model_validate(origin) for name, origin in json.loads(shards.read(FILE)).items()}


def superseded_rows(shards: Artifact) -> dict[str, NDArray[np.int64]]:
    """Returns the rows whose URL a later version has encoded again, by shard, ascending.

    A page that has changed is a new document; the earlier one is no longer trained on.
    """
    if not accumulates(shards):
        return {}
    index = DocumentIndex(shards)
    keys = [np.array(hashes64("url:", table.column("url").to_pylist()), np.uint64) for table in index.entries()]
    is_old = _is_superseded(keys, [version_of(part) for part in index.parts])
    tables = [table.filter(pa.array(old)) for table, old in zip(index.entries(), is_old, strict=True)]
    return rows_by_shard(pa.concat_tables(tables)) if tables else {}


def _is_superseded(keys: Sequence[NDArray[np.uint64]], versions: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Returns a mask for each array of keys: those that an array of a later version has, too."""
    sizes = [len(of_part) for of_part in keys]
    flat, version = np.concatenate([*keys, np.empty(0, np.uint64)]), np.repeat(versions, sizes)
    order = np.lexsort((version, flat))
    is_last = np.append(flat[order][1:] != flat[order][:-1], True)[: len(flat)]
    newest = version[order][is_last][np.cumsum(is_last) - is_last]
    old = np.empty(len(flat), bool)
    old[order] = version[order] < newest
    return np.split(old, np.cumsum(sizes)[:-1]) if sizes else []
