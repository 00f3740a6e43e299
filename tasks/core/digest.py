"""SHA-256 as 64 hex digits: of bytes, of a file, of a value as canonical JSON."""

import hashlib
import os
from typing import Any, BinaryIO, cast


def sha256_of(data: bytes) -> str:
    """Returns the sha256 of bytes.

    >>> sha256_of(b"abc")[:16]
    'ba7816bf8f01cfea'
    """
    return hashlib.sha256(data).hexdigest()


def sha256_of_json(value: Any) -> str:
    """Returns the sha256 of a value's canonical JSON; raises TypeError as `canonical_json` does.

    >>> sha256_of_json({"b": 1, "a": 2}) == sha256_of(b'{"a":2,"b":1}')
    True
    """
    # Imported here, because images hash models by this module where no package is installed, pydantic among them.
    from tasks.core.config import canonical_json

    return sha256_of(canonical_json(value).encode())


def sha256_of_stream(file: BinaryIO) -> str:
    """Returns the sha256 of what is left of an open file."""
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Returns the sha256 of a local file; raises OSError."""
    with open(path, "rb") as file:
        return sha256_of_stream(file)
