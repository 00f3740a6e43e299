"""Contract of tasks.stages.extract.partitioning: parts are a function of input and settings."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.documents.external_files import SourceFile
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.partitioning import Unit, arrange

SOURCE = FileSource(name="src", kind="text", path="/x/*")


def units(*sizes: int) -> list[Unit]:
    return [Unit(SourceFile(f"/x/{i}", str(i), size), SOURCE) for i, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(0, 20))
def test_every_unit_goes_into_one_part_in_order_and_no_part_is_empty(sizes: list[int], parts: int) -> None:
    given_units = units(*sizes)
    arranged = arrange(given_units, ExtractConfig(parts=parts))
    assert [unit for part in arranged for unit in part] == given_units
    assert all(arranged)
    assert not parts or len(arranged) <= parts


def test_parts_weigh_about_the_same() -> None:
    weights = [sum(unit.weight for unit in part) for part in arrange(units(*[10] * 100), ExtractConfig(parts=4))]
    assert weights == [250] * 4


def test_automatic_parts_follow_the_input_bytes() -> None:
    assert len(arrange(units(*[1_000_000] * 200), ExtractConfig(part_bytes=10_000_000))) == 20
    assert len(arrange(units(*[10] * 200), ExtractConfig())) == 8
    assert len(arrange(units(10, 10), ExtractConfig())) == 2


def test_compressed_captures_weigh_more_than_text() -> None:
    assert Unit(SourceFile("a", "a", 10)).weight == 40
    assert Unit(SourceFile("a", "a", 10), SOURCE).weight == 10
