"""Row files that do not match their source stop the stage with a message: what, where and what to do."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import InputError
from tasks.stages.extract.config import ExtractConfig, FileSource
from tests.conftest import run_stage_in

PROSE = "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. "
ROWS = [{"text": f"{number}. {PROSE * 3}"} for number in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
MODULE = "tasks.stages.extract.stage"


def zipped(data: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("rows.jsonl", data)
    return held.getvalue()


def config(folder: Path, kind: str = "jsonl", **options: object) -> ExtractConfig:
    first = FileSource(name="src", kind=kind, path=f"{folder}/src/*", **options)
    other = FileSource(name="other", kind="jsonl", path=f"{folder}/other/*")
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "o.jsonl").write_text(json.dumps({"text": PROSE * 4}))
    return ExtractConfig(files=(first, other), parts=4)


def put(folder: Path, **files: bytes) -> None:
    (folder / "src").mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / "src" / name).write_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        LINES.encode("utf-16"),
        LINES.encode("utf-16-le"),
        zipped(LINES),
        gzip.compress(json.dumps(ROWS).encode()),
        json.dumps(ROWS, indent=2).encode(),
        "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
    ],
    ids=["utf-16", "utf-16 without mark", "zip", "packed array", "indented array", "indented objects"],
)
def test_slightly_malformed_files_give_all_documents(tmp_path: Path, data: bytes) -> None:
    put(tmp_path, d=data)
    made = run_stage_in(tmp_path, MODULE, config(tmp_path))
    assert (made.record.rows_in, made.record.rows_out, made.record.rejected) == (4, 4, {})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"d": LINES.encode("utf-16").replace(b"{\0", b"(\0")}, "3 of 3 rows are not JSON objects"),
        ({"d": b"a,b\n1,2\n", "e": LINES.encode()}, r"src/d of the file source \"src\": 2 of 2 rows .*Expecting value"),
        ({"d": '{"text": "caf\u00e9"}\n'.encode("latin-1") * 2}, "can't decode byte 0xe9"),
        ({"d": b"[1, 2, 3]"}, "row 0 is not an object: b'1'"),
        ({"d": json.dumps({"count": 3, "data": ROWS}).encode()}, r"one JSON object with a list \"data\""),
        ({"d": json.dumps([{"body": "x", "n": 1}]).encode()}, r"text in the field \"text\" \(the first .* body, n\)"),
        ({"d": b"PAR1 and so on"}, r"it is a Parquet file\. Set kind"),
    ],
)
def test_a_file_of_another_format_stops_the_stage(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    put(tmp_path, **files)
    with pytest.raises(InputError, match=said):
        run_stage_in(tmp_path, MODULE, config(tmp_path))


def test_rows_that_are_malformed_in_part_are_rejections(tmp_path: Path) -> None:
    put(tmp_path, d=LINES.encode() + b'{"text"\n[]\n\n{broken\n', e=b'{"no": 1}\n' * 3 + LINES.encode())
    made = run_stage_in(tmp_path, MODULE, config(tmp_path, max_metadata_bytes=99))
    assert made.record.rejected == {"json_malformed": 3, "no_text": 3}
    assert made.record.rows_in == made.record.rows_out + sum(made.record.rejected.values())


def test_the_share_of_bad_rows_is_computed_over_the_whole_file(tmp_path: Path) -> None:
    put(tmp_path, d=b"x\n" * 40 + LINES.encode() * 15)
    assert len(run_stage_in(tmp_path, MODULE, config(tmp_path)).parts) == 4


def test_a_parquet_source_of_another_format_is_named(tmp_path: Path) -> None:
    put(tmp_path, d=b"SQLite format 3\0" + b"\0" * 99)
    with pytest.raises(InputError, match="it is an SQLite database"):
        run_stage_in(tmp_path, MODULE, config(tmp_path, "parquet"))


def test_a_parquet_source_without_any_text_is_reported(tmp_path: Path) -> None:
    put(tmp_path)
    pq.write_table(pa.table({"text": pa.array([None], pa.string()), "body": ["x"]}), tmp_path / "src" / "d")
    with pytest.raises(InputError, match='no row of the file source "src" has a text'):
        run_stage_in(tmp_path, MODULE, config(tmp_path, "parquet"))
