"""Errors for people: each message has a cause and a remedy.

An operator fails at once on a permanent error and retries any other.
"""

from collections.abc import Sequence


class SluiceError(Exception):
    """Base of all errors that are explained in one line.

    Args:
        cause: what was wrong and where, without a full stop.
        remedy: what to do about it, without a full stop; may be empty.
    """

    permanent = True
    exit_code = 2
    """Exit status of the shell; pod operators and failure policies decide by it."""

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
        cause: what was wrong and where, without a full stop.
        remedy: what to do about it, without a full stop; may be empty.
        more: further errors as (cause, remedy), each shown in a line of its own.
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


class DriftError(SluiceError):
    """The artifact already exists, made by another recipe or from other inputs."""


class SupersededError(SluiceError):
    """Another attempt has taken the work over: this one must not write any more."""


class ConservationError(SluiceError):
    """Rows were lost or doubled: rows in differ from rows out plus rows rejected."""


class StoreError(SluiceError):
    """The store rejects a request: full, no rights, or without a guarantee that Sluice relies on."""


class TransientError(SluiceError):
    """A temporary fault that a retry may overcome: network, lost worker."""

    permanent = False
    exit_code = 1


class StoppedError(TransientError):
    """The work was stopped by a signal after it had saved its state; started again, it resumes from there."""

    exit_code = 143


class KilledError(TransientError):
    """A process of the work was killed (SIGKILL), most often because memory was exhausted."""

    exit_code = 137
