"""References to secrets, which recipes and policy files contain instead of the secrets: "env:NAME" or "file:/path"."""

import os
import re

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
"""Where a secret is: in a variable of the task's environment, or in a file."""


def read_reference(reference: str) -> str:
    """Returns the secret at "env:NAME" or "file:/path"; raises KeyError, OSError or UnicodeDecodeError."""
    kind, _, source = reference.partition(":")
    if kind == "env":
        return os.environ[source]
    with open(source, encoding="utf-8") as file:
        return file.read()
