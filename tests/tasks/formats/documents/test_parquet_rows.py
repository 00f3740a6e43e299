"""Contract of tasks.formats.documents.parquet_rows: values of Parquet that Python lacks have a value, or none."""

import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.formats.documents.parquet_rows import plain, read_rows

BAD = pa.array([b"a\xff"]).view(pa.string())
TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])


def of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """The value, or the integer that stores it, in a column of this type."""
    return pa.array([value], pa.int64()).cast(kind)[0] if isinstance(value, int) else pa.array([value], kind)[0]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, pa.timestamp("ns"), "1970-01-01T00:00:00.000000001"),
        (1000, pa.timestamp("ns"), "1970-01-01T00:00:00.000001"),
        (0, pa.timestamp("s"), "1970-01-01T00:00:00"),
        (1, pa.timestamp("ns", "Europe/Berlin"), "1970-01-01T01:00:00.000000001+01:00"),
        (1, pa.timestamp("us", "Mars/Olympus"), "1970-01-01T00:00:00.000001+00:00"),
        (253402300800, pa.timestamp("s"), "+10000-01-01T00:00:00"),
        (253402300799, pa.timestamp("s", "Asia/Tokyo"), "9999-12-31T23:59:59+00:00"),
        (-62135596801, pa.timestamp("s"), "0000-12-31T23:59:59"),
        (-62198755200, pa.timestamp("s", "UTC"), "-0001-01-01T00:00:00+00:00"),
        (1500, pa.duration("ns"), 1.5e-6),
        (2**62, pa.duration("s"), float(2**62)),
        (1, pa.time64("ns"), "00:00:00.000000001"),
        ((1, 2, 3), pa.month_day_nano_interval(), (1, 2, 3)),
        ({"a": [None, 1]}, pa.struct([("a", pa.list_(pa.time64("ns")))]), {"a": [None, "00:00:00.000000001"]}),
        ([("k", 1)], pa.map_(pa.string(), pa.duration("ns")), [["k", 1e-9]]),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
        (decimal.Decimal("1.50"), pa.decimal128(5, 2), decimal.Decimal("1.50")),
        (None, pa.timestamp("ns"), None),
        (None, pa.null(), None),
        ("a", pa.string_view(), "a"),
        ("a", pa.large_string(), "a"),
    ],
)  # fmt: skip
def test_a_value_is_the_same_with_and_without_pandas(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert plain(pa.array([value], kind)[0] if value == 2**64 - 1 else of(value, kind)) == expected


@pytest.mark.parametrize("days", [pa.date32(), pa.date64()])
def test_a_date_after_9999_or_before_1_has_its_year(days: pa.DataType) -> None:
    stored = pa.array([2932897, -719163], pa.int32()).cast(pa.date32()).cast(days)
    assert [plain(one) for one in stored] == ["+10000-01-01", "0000-12-31"]


@pytest.mark.parametrize("column", [BAD, TWICE, BAD.dictionary_encode(), pa.ListArray.from_arrays([0, 1], BAD)])
def test_text_that_is_not_utf8_and_fields_of_one_name_have_no_value(column: pa.Array) -> None:
    with pytest.raises(ValueError, match=r"decode|duplicate|several"):
        plain(column[0])


def test_a_row_lacks_only_the_fields_that_have_no_value(tmp_path: Path) -> None:
    texts, picture = pa.array([b"t"]), pa.array([b"\xff"])
    columns = [texts, BAD, picture, pa.array([1]), pa.array([2]), pa.array([1], pa.timestamp("ns"))]
    pq.write_table(pa.table(columns, names=["text", "bad", "picture", "same", "same", "at"]), tmp_path / "d.parquet")
    assert list(read_rows(str(tmp_path / "d.parquet"))) == [{"text": "t", "at": "1970-01-01T00:00:00.000000001"}]
    assert list(read_rows(str(tmp_path / "d.parquet"), ["text", "bad"])) == [{"text": "t"}]
