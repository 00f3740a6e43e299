"""`similar`: near copies of a text in a version, checked by a comparison with every document."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.shell import main
from tasks.run.trace.explain import similar
from tasks.stages.dedup import DedupConfig
from tests.conftest import run_stage_in
from tests.tasks.stages.dedup.made import corpus, document
from tests.tasks.stages.dedup.test_shingle import runs_of
from tests.tasks.stages.dedup.test_stage import DEDUP, edited, prose

ROWS = [
    document(edited(prose(seed), range(changed), "x"), f"{seed}/{changed}")
    for seed in range(30)
    for changed in (0, 2, 5, 30)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A version of 120 documents in five parts, with `duplicates` from dedup."""
    folder = tmp_path_factory.mktemp("similar")
    run_stage_in(folder, DEDUP, DedupConfig(), corpus(folder, ROWS, 5), kind="duplicates")
    return Store(str(folder))


def similarity(one: str, other: str) -> float:
    left, right = (set(runs_of(text.lower().split(), 5)) for text in (one, other))
    return len(left & right) / len(left | right)


def test_near_copies_agree_with_a_comparison_with_all_documents(store: Store) -> None:
    for seed in range(30):
        text = edited(prose(seed), range(1), "y").upper() + "!"
        true = {row["id"]: similarity(row["text"], text.rstrip("!")) for row in ROWS}
        found = similar(store, "test", "dev", text, 0.9)
        assert {one.id: pytest.approx(one.jaccard) for one in found.copies} == {
            doc_id: share for doc_id, share in true.items() if share >= 0.9
        }
        assert [one.jaccard for one in found.copies] == sorted((one.jaccard for one in found.copies), reverse=True)
        assert found.compared == len(ROWS)


def test_a_unique_text_has_no_copies(store: Store) -> None:
    found = similar(store, "test", "dev", " ".join(prose(99)))
    assert (found.copies, found.candidates) == ([], 0)
    assert found.text().startswith("0 of 120 documents")


def test_a_lower_threshold_states_the_probability_of_finding_a_copy(store: Store) -> None:
    found = similar(store, "test", "dev", " ".join(prose(3)), 0.5)
    assert found.recall == pytest.approx(1 - (1 - 0.5**8) ** 16)
    assert "a copy at the threshold is found with probability 0.06" in found.text()


@pytest.mark.parametrize(("text", "threshold"), [(" . ! ", None), ("some text", 0.0), ("some text", 1.1)])
def test_invalid_lookups_are_refused(store: Store, text: str, threshold: float | None) -> None:
    with pytest.raises(InputError):
        similar(store, "test", "dev", text, threshold)


def test_without_signatures_the_error_names_the_setting(tmp_path: Path) -> None:
    run_stage_in(tmp_path, DEDUP, DedupConfig(near=False), corpus(tmp_path, ROWS[:4]), kind="duplicates")
    with pytest.raises(InputError, match=r"\[dedup\] near = true"):
        similar(Store(str(tmp_path)), "test", "dev", "some text")


def test_the_shell_reads_a_file_or_standard_input(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [{"name": "a", "kind": "text", "path": "/a/*"}]
    recipe = json.dumps({"name": "test", "extract": {"files": files}, "place": {"store": store.root}})
    text = ROWS[0]["text"].encode()
    (tmp_path / "page.txt").write_bytes(text)
    assert main(["similar", "--recipe", recipe, str(tmp_path / "page.txt")]) == 0
    shown = capsys.readouterr().out
    assert "1.000" in shown
    assert ROWS[0]["url"] in shown
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text)))
    assert main(["similar", "--recipe", recipe, "--json", "--most", "1", "-"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["copies"]] == [ROWS[0]["id"]]
    assert main(["similar", "--recipe", recipe, str(tmp_path / "none.txt")]) == 2
