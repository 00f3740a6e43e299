"""Rows of Parquet files of others as values that JSON can have, with and without pandas.

Parquet holds more than Python: times in nanoseconds, years above 9999 and below 1, unknown time zones, several fields
of one name, and text that is not UTF-8. `Scalar.as_py` raises for these, or returns pandas' types if pandas is
installed. Here times are text in ISO 8601 and durations are seconds, whatever their unit and size. What has no value is
a ValueError of its field, so that the other fields and rows are read.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tasks.core import parquet

_ROWS_AT_ONCE = 16
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = len("1970-01-01T00:00:00")
_DAY_MS = 86_400_000
_CYCLE = 146_097
"""Days of 400 years of the Gregorian calendar."""


def read_rows(path: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of a local file, with bytes as text.

    A row lacks the fields that have no value, those whose bytes are no text, and those of several columns.

    Args:
        path: the file.
        columns: the columns to read; None for all.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    with parquet.open_file(path) as file:
        names = sorted(set(file.schema_arrow.names if columns is None else columns) - doubled(file.schema_arrow))
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=names):
            arrays = {name: batch.column(name) for name in names}
            for index in range(batch.num_rows):
                yield _readable({name: array[index] for name, array in arrays.items()})


def _readable(fields: dict[str, pa.Scalar]) -> dict[str, Any]:
    row = {}
    for name, field in fields.items():
        with suppress(ValueError):
            row[name] = text_of(plain(field))
    return row


def doubled(schema: pa.Schema) -> set[str]:
    """Returns the names that several columns have.

    >>> doubled(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.string())]))
    {'a'}
    """
    return {name for name, count in Counter(schema.names).items() if count > 1}


def plain_fields(fields: dict[str, pa.Scalar]) -> tuple[dict[str, Any], list[str]]:
    """Returns the values of fields (`plain`), and the names of those that have none."""
    values, without = {}, []
    for name, field in fields.items():
        try:
            values[name] = plain(field)
        except ValueError:
            without.append(name)
    return values, without


def plain(value: pa.Scalar) -> Any:
    """Returns a value as `Scalar.as_py` does, except for times (text), durations (seconds) and maps (lists of pairs).

    Raises:
        ValueError: a text is not UTF-8, or a struct has several fields of one name.

    >>> plain(pa.scalar(1, pa.timestamp("ns")))
    '1970-01-01T00:00:00.000000001'
    >>> plain(pa.scalar(2**40, pa.timestamp("s", "UTC")))
    '+36812-02-20T00:36:16+00:00'
    """
    if not value.is_valid:
        return None
    return _with_times(value) if _has_times(value.type) else value.as_py()


def text_of(value: Any) -> Any:
    """Returns bytes that are UTF-8 as text, and any other value unchanged.

    Writers that do not annotate their strings store texts as bytes.

    Raises:
        ValueError: the bytes are not UTF-8.
    """
    return value.decode("utf-8") if isinstance(value, bytes) else value


@lru_cache(256)
def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_times(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_times(kind.storage_type)
    if pa.types.is_map(kind):
        return _has_times(kind.key_type) or _has_times(kind.item_type)
    if pa.types.is_interval(kind):
        return False
    return pa.types.is_temporal(kind) or any(_has_times(kind.field(number).type) for number in range(kind.num_fields))


def _with_times(value: pa.Scalar) -> Any:
    """Returns the value of a type with times, which is not null."""
    kind = value.type
    if pa.types.is_temporal(kind):
        return _time(kind, value.value)
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return plain(value.value)
    if pa.types.is_map(kind):
        entries = value.values
        return [[plain(side[row]) for side in (entries.field(0), entries.field(1))] for row in range(len(entries))]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise ValueError("a struct has several fields of one name")
        return {name: plain(value[number]) for number, name in enumerate(names)}
    return [plain(item) for item in value.values]


def _time(kind: pa.DataType, value: int) -> str | float:
    if pa.types.is_date(kind):
        return _date(value // _DAY_MS if pa.types.is_date64(kind) else value)
    per_second = _PER_SECOND[kind.unit]
    if pa.types.is_duration(kind):
        return value / per_second
    seconds, part = divmod(value, per_second)
    fraction = part * 10**9 // per_second
    digits = f".{fraction:09}".removesuffix("000") if fraction else ""
    return f"{_clock(seconds)}{digits}" if pa.types.is_time(kind) else _timestamp(seconds, digits, kind.tz)


def _timestamp(seconds: int, digits: str, zone: str | None) -> str:
    """Returns a time in its zone; in UTC if the zone is not known, or does not reach the year."""
    offset = ""
    if zone:
        try:
            local = (_EPOCH + timedelta(seconds=seconds)).astimezone(_zone(zone))
            seconds += int((local.utcoffset() or timedelta()).total_seconds())
            offset = local.isoformat(timespec="seconds")[_SECOND:]
        except OverflowError:
            offset = "+00:00"
    days, rest = divmod(seconds, 86_400)
    return f"{_date(days)}T{_clock(rest)}{digits}{offset}"


def _date(days: int) -> str:
    """Returns a day after the epoch; dates repeat after 400 years, so Python's years 1 to 400 stand for all."""
    cycles, day = divmod(days + _EPOCH.toordinal() - 1, _CYCLE)
    found = date.fromordinal(day + 1)
    year = found.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""  # as ISO 8601 has it
    return f"{sign}{abs(year):04}-{found.month:02}-{found.day:02}"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@lru_cache(256)
def _zone(name: str) -> tzinfo:
    try:
        zone: tzinfo = pa.lib.string_to_tzinfo(name)
    except (LookupError, ValueError, OSError):
        return UTC
    return zone
