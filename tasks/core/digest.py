"""SHA-256, as 64 hex digits, of bytes, streams and files."""

import hashlib
import os
from typing import Any, BinaryIO, cast


def sha256_of(data: bytes) -> str:
    """Returns the sha256 of bytes.

    >>> sha256_of(b"abc")[:16]
    'ba7816bf8f01cfea'
    """
    return hashlib.sha256(data).hexdigest()


def sha256_of_stream(file: BinaryIO) -> str:
    """Returns the sha256 of an open file from its current position to its end."""
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Returns the sha256 of a local file; raises OSError."""
    with open(path, "rb") as file:
        return sha256_of_stream(file)
