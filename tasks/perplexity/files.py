"""Opens files that may be compressed. Used by `arpa` and `reference`."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
    """Yields the bytes of a local file, unpacked as the end of its name says; raises OSError when it is damaged."""
    codec = _CODECS.get(Path(path).suffix)
    with pa.OSFile(path) as raw:
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        yield io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)
