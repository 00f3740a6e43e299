"""The page of duplicates: both texts of each pair, escaped, masked, and without takedowns."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Listener, Output
from tasks.core.store import Store
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.duplicates_page import DATA, PAGE, differences
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup import stage as dedup
from tests.conftest import run_stage_in
from tests.taken_down import take_down
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, prose, text
from tests.tasks.stages.dedup.made import corpus, document

HOSTILE = "<script>alert(1)</script>"
SURE = DedupConfig(minhash={"bands": 32, "rows": 4})
"""Bands in which two texts of a similarity of 0.75 meet with a probability of 0.999994."""


def copies(seed: int, changes: int, host: str, **more: Any) -> list[dict[str, Any]]:
    """Two texts of 150 words with `changes` replaced words, at one host and at its mirror."""
    both = ((text(seed), host), (text(seed, changes), f"mirror.{host}"))
    return [document(written, url=f"https://{name}/{seed}", **more) for written, name in both]


def shown(folder: Path, rows: list[dict[str, Any]], *takedowns: Artifact) -> tuple[str, Any]:
    """The page and its data, of all documents."""
    inputs = corpus(folder, rows)
    duplicates = run_stage_in(folder, "tasks.stages.dedup.stage", SURE, inputs)
    given = {**inputs, "duplicates": duplicates, "takedowns": list(takedowns)}
    made = run_stage_in(folder, CONSOLIDATE, ConsolidateConfig(), given)
    return made.read(PAGE).decode(), json.loads(made.read(DATA))


def words(seed: int) -> list[str]:
    """Common words of both texts of a pair."""
    return prose(seed)[-5:]


def test_both_texts_of_a_pair_are_shown_with_differing_words_marked(tmp_path: Path) -> None:
    page, data = shown(tmp_path, copies(1, 15, "a.org") + copies(2, 17, "b.org"))
    (above,), (below,) = data["above"]["shown"], data["below"]["shown"]
    assert (above["jaccard"], below["jaccard"]) == (round(131 / 161, 6), round(129 / 163, 6))
    assert {one["verdict"] for one in above["documents"]} == {"kept", "duplicate_near"}
    assert {one["verdict"] for one in below["documents"]} == {"kept"}
    for seed, edits in ((1, 15), (2, 17)):
        plain = prose(seed)
        assert page.count(" ".join(words(seed))) >= 2
        assert f"<mark>{' '.join(plain[:edits])} </mark>" in page
        assert f"<mark>{' '.join('x' + word for word in plain[:edits])} </mark>" in page


def test_texts_and_urls_are_escaped_and_personal_data_is_masked(tmp_path: Path) -> None:
    rows = copies(1, 2, f"a.org/{HOSTILE}")
    mail = "ann@example.org"
    for row in rows:
        row["text"] = f"{mail} {HOSTILE} {row['text']}"
        row["pii_spans"] = [{"kind": "email", "start": 0, "end": len(mail)}]
    page, data = shown(tmp_path, rows)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert mail not in page + json.dumps(data)
    assert "&lt;email&gt;" in page


def test_no_text_of_a_cluster_with_a_takedown_is_shown(tmp_path: Path) -> None:
    # A third document with the same text as the first pair is taken down; of the next pair one text is taken down;
    # of the last pair none.
    rows = copies(1, 15, "a.org") + copies(2, 17, "b.org") + copies(3, 15, "c.org")
    third = document(" ".join(prose(1)).upper(), url="https://gone.net/1")
    taken = take_down(tmp_path, urls="https://gone.net/1\nhttps://mirror.b.org/2")
    page, data = shown(tmp_path, [*rows, third], taken)
    for seed, present in ((1, False), (2, False), (3, True)):
        assert all((word in page, word in json.dumps(data)) == (present, present) for word in words(seed))
    assert "gone.net" not in page
    assert [(one["documents"], one["withheld"]) for one in data["largest"]] == [(3, True), (2, False)]
    sides = {
        name: (data[name]["pairs"], data[name]["withheld"], len(data[name]["shown"])) for name in ("above", "below")
    }
    assert sides == {"above": (2, 1, 1), "below": (1, 1, 0)}
    assert "No text is shown, because a document of the cluster is taken down" in page


def test_words_outside_common_five_word_sequences_are_marked() -> None:
    one, other = differences("Now: the old,\nharbour - IS open again today", "the old harbour is open until midnight")
    assert one == [("Now: ", True), ("the old,\nharbour - IS open ", False), ("again today", True)]
    assert other == [("the old harbour is open ", False), ("until midnight", True)]
    assert differences("Old harbour", "the old harbour") == (
        [("Old harbour", False)],
        [("the ", True), ("old harbour", False)],
    )
    assert differences("", "word") == ([], [("word", True)])


def test_texts_that_repeat_one_word_are_compared_quickly() -> None:
    begin = time.process_time()
    differences("a " * 2000, "a b " * 1000)
    assert time.process_time() - begin < 5


class Tracker(Listener):
    """Keeps the files that a tracker receives."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        raise AssertionError("these stages send their numbers with the record")

    def file(self, name: str, data: bytes) -> None:
        self.files[name] = data


def test_the_tracker_receives_the_figure_and_the_page(tmp_path: Path) -> None:
    inputs, tracker = corpus(tmp_path, copies(1, 15, "a.org")), Tracker()
    for stage, config, kind in ((dedup, SURE, "duplicates"), (consolidate, ConsolidateConfig(), "documents")):
        output = Output(Store(str(tmp_path)), ArtifactId(f"test/{kind}", "dev"), kind)
        output.listen(tracker)
        with open_engine() as engine:
            report = stage.run(config, Inputs(inputs), output, engine)
        inputs[kind] = commit(output, kind, stage.VERSION, config, [], report)
    assert tracker.files["duplicates.png"].startswith(b"\x89PNG")
    assert tracker.files["audit.json"] == inputs["duplicates"].read("audit.json")
    assert all(tracker.files[name] == inputs["documents"].read(name) for name in (PAGE, DATA))
