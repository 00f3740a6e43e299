"""Inputs of a stage from outside the store: files that its settings name, and code with its own versions.

Reads the names and bytes of the files, on this machine or on an object store.
"""

import os
from collections.abc import Iterator
from typing import Any

from tasks.core.artifact import InputRef
from tasks.core.config import Config, sha256_of_json
from tasks.core.digest import sha256_of_stream
from tasks.core.errors import InputError
from tasks.core.store import open_outside

EXTERNAL = "external:"
"""Prefix of the id of an input from outside the store."""

CODE = "code:"
"""Prefix of the id of an input that is code."""


def external_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to the files outside the store that a stage reads; names and bytes count in the fingerprint.

    Raises:
        InputError: a file cannot be read.
    """
    if not hasattr(module, "external"):
        return
    for role, paths in sorted(module.external(config).items()):
        listing = [[os.path.basename(path), _sha256(role, path)] for path in paths]
        content = sha256_of_json(listing)
        yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=content, content=content)


def code_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to code that only some settings use, with its own versions."""
    if hasattr(module, "code"):
        for name, version in sorted(module.code(config).items()):
            yield InputRef(role=f"{CODE}{name}", address=f"{CODE}{name}", fingerprint=version, content=version)


def _sha256(role: str, path: str) -> str:
    try:
        with open_outside(path) as file:
            return sha256_of_stream(file)
    except OSError as error:
        raise InputError(f"{role}: {path} cannot be read ({error.strerror or error})", "correct the path") from None
