"""Validation of an external fastText model file, before fastText loads it.

fastText checks only the first bytes of a file: for a truncated one it silently uses zeros for the missing weights, or
never returns. So the file's size is compared with its own header here, and its labels are read; for a million words in
about a second.

Source of the layout: fastText 0.9.2, `FastText::saveModel` and the `save` methods that it calls (version 12).
"""

import mmap
import struct

from tasks.core.errors import InputError

_MAGIC, _VERSION, _SUPERVISED, _LABEL = 793712314, 12, 3, 1
_PREFIX = b"__label__"


def labels_of(path: str) -> tuple[str, ...]:
    """Returns the labels of a supervised model, without `__label__`, in the file's order.

    Raises:
        InputError: there is no such file, or it is not a complete supervised fastText model.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _FileReader(data, path).labels()
    except OSError as error:
        raise InputError(
            f"the language model {path} cannot be read ({error.strerror})", "correct annotate.settings.language.model"
        ) from None
    except (ValueError, struct.error):  # empty, or shorter than its header declares
        raise InputError(f"{path} is not whole", "fetch it again") from None


class _FileReader:
    """Sequential reader of a model file."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self._data, self._path, self._at = data, path, 0

    def labels(self) -> tuple[str, ...]:
        if self._read("2i") != (_MAGIC, _VERSION):
            raise InputError(f"{self._path} is no fastText model", "name the .bin or .ftz file itself, unpacked")
        if self._read("12id")[7] != _SUPERVISED:
            raise InputError(f"{self._path} holds word vectors and no labels", "name a model that tells languages")
        entries, _, _, _, pruned = self._read("3i2q")
        names = [name for name, kind in (self._entry() for _ in range(entries)) if kind == _LABEL]
        self._skip(8 * max(0, pruned))
        input_quantised = self._flag()
        self._matrix(input_quantised)
        output_quantised = self._flag()
        self._matrix(input_quantised and output_quantised)
        return tuple(name.removeprefix(_PREFIX).decode("utf-8", "replace") for name in names)

    def _entry(self) -> tuple[bytes, int]:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError("cut off")
        name, self._at = self._data[self._at : end], end + 1
        return name, self._read("qb")[1]

    def _matrix(self, quantised: bool) -> None:
        if not quantised:
            rows, columns = self._read("2q")
            self._skip(4 * rows * columns)
            return
        norms = self._flag()
        rows, _, codes = self._read("2qi")
        self._skip(codes)
        self._quantiser()
        if norms:
            self._skip(rows)
            self._quantiser()

    def _quantiser(self) -> None:
        dimensions = self._read("4i")[0]
        self._skip(4 * dimensions * 256)

    def _flag(self) -> bool:
        return bool(self._read("?")[0])

    def _read(self, form: str) -> tuple[int, ...]:
        read: tuple[int, ...] = struct.unpack_from(f"<{form}", self._data, self._at)
        self._skip(struct.calcsize(f"<{form}"))
        return read

    def _skip(self, count: int) -> None:
        self._at += count
        if count < 0 or self._at > len(self._data):
            raise ValueError("cut off")
