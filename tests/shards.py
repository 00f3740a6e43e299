"""Token shards of given documents."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from tasks.formats.tokens.shard import ShardBuffer, list_array


def buffer_of(
    source: str,
    split: str,
    uids: Sequence[bytes],
    tokens: Sequence[NDArray[Any]],
    n_bytes: Sequence[int],
    labels: Mapping[str, Sequence[str]] | None = None,
) -> ShardBuffer:
    """Returns documents of one shard to write; see the attributes of `ShardBuffer`."""
    columns = {name: pa.array(values, pa.string()) for name, values in (labels or {}).items()}
    sizes = pa.array(n_bytes, pa.uint32())
    return ShardBuffer(source, split, pa.array(uids, pa.binary(16)), list_array(tokens), sizes, columns)
