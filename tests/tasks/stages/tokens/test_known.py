"""Documents of an earlier version are found by id and page, for any division into parts and ranges."""

from pathlib import Path

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.engine import Engine
from tasks.core.merges import range_merge
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents import key_index
from tasks.formats.documents.key_index import MergedKeys
from tasks.stages.tokens import known
from tasks.stages.tokens.known import Names, find_known, leave_out
from tests.corpora import kept_document, tokens_in


def sizes_of(output: Output) -> list[int]:
    """Bytes of the files of the passes; they exist until the commit."""
    sizes = output.store.sizes(output.folder.path)
    return [size for path, size in sizes.items() if "/known." in path and path.endswith(".bin")]


def names_of(rows: list[dict]) -> Names:
    return [row["id"] for row in rows], [row["url"] for row in rows]


@pytest.mark.parametrize("range_keys", [1 << 22, 40])
@pytest.mark.parametrize("parts", [1, 7])
def test_exactly_the_documents_of_the_earlier_version_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int, range_keys: int
) -> None:
    monkeypatch.setattr(key_index, "_RANGE_KEYS", range_keys)
    monkeypatch.setattr(known, "_RANGE", range_keys)
    monkeypatch.setattr(range_merge, "_FAN", 3)
    before = [kept_document(f"https://h{i % 5}.org/{i}", f"text {i}") for i in range(90)]
    earlier = MergedKeys.of(tokens_in(tmp_path, before).shards)
    changed = [{**row, "id": row["id"][::-1]} for row in before[60:75]]  # the page is known, the document is not
    moved = [{**row, "url": f"{row['url']}/moved"} for row in before[75:]]
    rows = [*before[:60], *changed, *moved, *(kept_document(f"https://new.org/{i}", "new") for i in range(30))]
    several = [rows[number::parts] for number in range(parts)]
    output = Output(Store(str(tmp_path)), ArtifactId("test/new", "dev"), "by-hand")
    marks = find_known(earlier, names_of, several, output, Engine())
    ids = {row["id"] for row in before[:60]}
    assert [list(map(bool, one.read())) for one in marks] == [[row["id"] in ids for row in of] for of in several]
    leave_out(output)
    assert not output.committed


def test_the_pages_of_a_source_with_one_url_are_not_compared_with_one_another(tmp_path: Path) -> None:
    rows = [{**kept_document(f"https://h.org/{i}", f"text {i}"), "url": "https://h.org/"} for i in range(400)]
    earlier = MergedKeys.of(tokens_in(tmp_path, rows[:300]).shards)
    output = Output(Store(str(tmp_path)), ArtifactId("test/new", "dev"), "by-hand")
    (marks,) = find_known(earlier, names_of, [rows[100:]], output, Engine())
    assert marks.read() == bytes([1] * 200 + [0] * 100)
    assert 0 < max(sizes_of(output)) < 300 * 32
