"""Errors with a cause and a remedy in each message.

An Airflow operator fails at once on a permanent error and retries any other.
"""

import re
from collections.abc import Sequence

# "@" also separates the revision of an address on the hub, after a "/" and without a ":" before it.
_LOGIN = re.compile(r"(?<=://)[^\s/?#]*@|(?<=hf://)[^\s:@]*:[^\s:@]*@")


def without_login(text: str) -> str:
    """Returns a URI, or a text with URIs, without users and passwords in them.

    >>> without_login("no answer from http://me:secret@mlflow:5000/api")
    'no answer from http://mlflow:5000/api'
    >>> without_login("hf://datasets/me:secret@ink/tales"), without_login("hf://ink/pot@v1/model.bin")
    ('hf://ink/tales', 'hf://ink/pot@v1/model.bin')
    """
    return _LOGIN.sub("", text)


class SluiceError(Exception):
    """Base of all errors that one line explains.

    Args:
        cause: what is wrong and where, without a final period.
        remedy: what to do about it, without a final period; may be empty.
    """

    permanent = True
    exit_code = 2
    """Exit status of the shell. Pod operators and failure policies read it."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = " ".join(cause.split()).rstrip(".")
        self.remedy = " ".join(remedy.split()).rstrip(".")

    def __str__(self) -> str:
        remedy = self.remedy and self.remedy[0].upper() + self.remedy[1:]
        return f"{self.cause}. {remedy}{'' if remedy.endswith('?') else '.'}" if remedy else f"{self.cause}."


class RecipeError(SluiceError):
    """The recipe, or an override of it, cannot be used as written.

    Args:
        cause: what is wrong and where, without a final period.
        remedy: what to do about it, without a final period; may be empty.
        more: further errors as (cause, remedy), each printed on its own line.
    """

    def __init__(self, cause: str, remedy: str = "", more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(cause, remedy)
        self.more = tuple(RecipeError(*error) for error in more)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.more)])

    def __reduce__(self) -> tuple[type["RecipeError"], tuple[object, ...]]:
        return type(self), (self.cause, self.remedy, tuple((error.cause, error.remedy) for error in self.more))


class InputError(SluiceError):
    """An input is missing, empty or broken."""


class NothingNewError(InputError):
    """The version has nothing that an earlier one does not have: there is nothing to make, and nothing to correct."""


class DriftError(SluiceError):
    """The artifact already exists, and was made with other settings or from other inputs."""


class SupersededError(SluiceError):
    """Another attempt has taken over the work; this one must not write anymore."""


class ConservationError(SluiceError):
    """Rows were lost or duplicated: rows in differ from rows out plus rows rejected."""


class StoreError(SluiceError):
    """The store rejects a request: it is full, denies access, or lacks a guarantee that Sluice relies on."""


class TransientError(SluiceError):
    """A temporary fault, such as a network error or a lost worker; a retry may succeed."""

    permanent = False
    exit_code = 1


class StoppedError(TransientError):
    """The work was stopped by a signal after it saved its state; the next start resumes from that state."""

    exit_code = 143


class KilledError(TransientError):
    """A process of the stage was killed (SIGKILL), most often because it ran out of memory."""

    exit_code = 137
