"""What can go wrong, in the words a person needs: the cause, then the remedy.

An operator fails at once on a permanent error and retries any other.
"""

from collections.abc import Sequence


class SluiceError(Exception):
    """A failure that is explained in one line.

    Args:
        cause: what was wrong and where, without a full stop.
        remedy: what to do about it, without a full stop; may be empty.
    """

    permanent = True
    exit_code = 2
    """What the shell ends with; pod operators and failure policies go by it."""

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
        more: what else is wrong, as (cause, remedy) each: shown in lines of their own.
    """

    def __init__(self, cause: str, remedy: str = "", more: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(cause, remedy)
        self.more = tuple(RecipeError(*one) for one in more)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.more)])

    def __reduce__(self) -> tuple[type["RecipeError"], tuple[object, ...]]:
        return type(self), (self.cause, self.remedy, tuple((one.cause, one.remedy) for one in self.more))


class InputError(SluiceError):
    """An input is missing, empty or broken."""


class DriftError(SluiceError):
    """The address already holds something made by another recipe or from other inputs."""


class SupersededError(SluiceError):
    """Another attempt at the same work has taken it over: this one must not write any more."""


class ConservationError(SluiceError):
    """Rows were lost or doubled: rows in differ from rows out plus rows rejected."""


class StoreError(SluiceError):
    """The store refuses: full, no rights, or without a guarantee that Sluice relies on."""


class TransientError(SluiceError):
    """A fault that a retry can mend: network, lost worker."""

    permanent = False
    exit_code = 1


class StoppedError(TransientError):
    """The work was asked to stop and has saved what it had: started again, it goes on from there."""

    exit_code = 143


class KilledError(TransientError):
    """A process of the work was killed (SIGKILL), most often for want of memory."""

    exit_code = 137
