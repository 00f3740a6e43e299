"""Decontamination: documents that contain an evaluation item are reported with it; common phrases are not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.document import CONTAMINATED, CONTAMINATION
from tasks.formats.documents.text import normal_words
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet
from tasks.stages.decontaminate.passes import word_positions
from tests.conftest import SCATTERED, run_stage_in
from tests.s3_server import S3Server
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import corpus, document, rows_of

STAGE = "tasks.stages.decontaminate.stage"
QUESTION = (
    "A lighthouse keeper counts ships that pass between dusk and dawn; on Monday she counted nineteen, on Tuesday "
    "twice as many, and on Wednesday seven fewer than on both days together. How many ships passed in all?"
)
SHORT = "Which harbour town exports the most dried apricots?"  # eight words
TOO_SHORT = "Why is the sky blue?"
PROVERB = "a bird in the hand is worth two in the bush as they always say"
FILLER = "Nothing here has to do with any question that anyone was ever asked, said page {} about gardens."


def sets(folder: Path, items: list[dict[str, Any]], **more: Any) -> DecontaminateConfig:
    """Settings with one set of JSON lines."""
    folder.mkdir(exist_ok=True)
    path = folder / "quiz.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    return DecontaminateConfig(sets=(EvaluationSet(name="quiz", path=str(path), fields=("query",)),), **more)


def looked_at(
    folder: Path, config: DecontaminateConfig, texts: dict[str, str], parts: int = 2, **more: Any
) -> Artifact:
    """Runs the stage over texts by name, among others without any item."""
    rows = [document(f"{text}", name) for name, text in texts.items()]
    rows += [document(FILLER.format(number), f"filler-{number}") for number in range(4)]
    inputs = {"extracted": corpus(folder, rows, parts=parts)["extracted"]}
    return run_stage_in(folder, STAGE, config, inputs, **more)  # type: ignore[arg-type]


def matches(made: Artifact) -> dict[str, list[tuple[str, float]]]:
    """Items and shares by name of the document."""
    found: dict[str, list[tuple[str, float]]] = {}
    for row in rows_of(made, "matches/"):
        found.setdefault(row["url"].rpartition("/")[2], []).append((row["item"], round(row["share"], 2)))
    return found


def test_items_are_found_in_any_formatting_with_share_and_position(tmp_path: Path) -> None:
    config = sets(tmp_path, [{"query": QUESTION}, {"query": SHORT}, {"query": TOO_SHORT}])
    shouted = QUESTION.upper().replace(";", " --").replace(",", " ,\n").replace(".", "!")
    texts = {
        "verbatim": f"Before it.\n{QUESTION} After it.",
        "shouted": f"Quiz of the day: {shouted} Answer below.",
        "half": f"She said: {' '.join(QUESTION.split()[:18])} and then something else followed.",
        "short": "So: which HARBOUR town exports the most, dried apricots? Nobody knows.",
        "too-short": f"{TOO_SHORT} Because of the light.",
        "below": " ".join(QUESTION.split()[:12]),
    }
    made = looked_at(tmp_path, config, texts)
    size = len(QUESTION.split()) - 12
    half = round((18 - 12) / size, 2)
    long, short = "quiz.jsonl:1", "quiz.jsonl:2"
    assert matches(made) == {
        "verbatim": [(long, 1.0)],
        "shouted": [(long, 1.0)],
        "half": [(long, half)],
        "short": [(short, 1.0)],
    }
    texts_of = {row["id"]: row["text"] for row in (document(text, name) for name, text in texts.items())}
    spans = {
        row["url"].rpartition("/")[2]: texts_of[row["id"]][row["begin"] : row["end"]]
        for row in rows_of(made, "matches/")
    }
    assert spans["verbatim"] == QUESTION
    assert spans["half"] == " ".join(QUESTION.split()[:18])
    assert spans["short"] == "which HARBOUR town exports the most, dried apricots?"
    (row,) = made.table("sets.parquet").to_pylist()
    assert row == {"set": "quiz", "items": 3, "too_short": 1, "common": 0, "found": 2, "documents": 4}
    assert made.record.metrics["contaminated"] == 4
    assert "1 items are too short" in made.record.note


def test_every_document_has_a_row_with_its_best_match(tmp_path: Path) -> None:
    config = sets(tmp_path, [{"query": f"{QUESTION} {SHORT}"}, {"query": QUESTION}])
    made = looked_at(tmp_path, config, {"one": QUESTION})
    found = [row[CONTAMINATED] for row in rows_of(made, f"{CONTAMINATION}/")]
    (only,) = [row for row in found if row]
    assert (len(found), only["set"], only["item"], only["share"], only["items"]) == (5, "quiz", "quiz.jsonl:2", 1.0, 2)


def test_a_phrase_in_many_texts_is_ignored_and_a_popular_item_is_not(tmp_path: Path) -> None:
    config = sets(tmp_path, [{"query": f"{PROVERB}, but {QUESTION}"}, {"query": PROVERB}], common=3)
    texts = {f"says-{number}": f"{number} times I said: {PROVERB}." for number in range(4)}
    texts |= {f"copy-{number}": f"Page {number}. {PROVERB}, but {QUESTION}" for number in range(5)}
    made = looked_at(tmp_path / "many", config, texts)
    assert matches(made) == {f"copy-{number}": [("quiz.jsonl:1", 1.0)] for number in range(5)}
    (row,) = made.table("sets.parquet").to_pylist()
    assert (row["common"], row["found"]) == (1, 1)  # nothing is left of the item that consists only of the proverb

    few = {name: text for name, text in texts.items() if name != "says-0"}
    assert {item for found in matches(looked_at(tmp_path / "few", config, few)).values() for item, _ in found} == {
        "quiz.jsonl:1", "quiz.jsonl:2",
    }  # fmt: skip
    # A hundred captures of one page do not make its words common.
    again = {f"says-{number}": f"I said: {PROVERB}." for number in range(9)}
    assert len(matches(looked_at(tmp_path / "again", config, again))) == 9


@pytest.mark.parametrize("several", soak_but({0}, [SCATTERED, 2]))
def test_bytes_do_not_depend_on_workers_and_matches_not_on_parts(tmp_path: Path, several: int) -> None:
    config = sets(tmp_path, [{"query": f"{PROVERB}, but {QUESTION}"}, {"query": SHORT}], common=3)
    texts = {f"says-{number}": f"{number} times I said: {PROVERB}." for number in range(5)}
    texts |= {f"copy-{number}": f"{QUESTION} {number} {SHORT}" for number in range(5)}
    one, two = (looked_at(tmp_path / f"{n}", config, texts, parts=4, workers=n) for n in (0, several))
    assert one.record.content == two.record.content
    whole = looked_at(tmp_path / "whole", config, texts, parts=1)
    assert matches(whole) == matches(one)
    assert whole.read("report.html") == one.read("report.html")


def test_the_page_shows_items_and_documents_escaped(tmp_path: Path) -> None:
    config = sets(tmp_path, [{"query": f"<script>alert(1)</script> {QUESTION}"}])
    page = looked_at(tmp_path, config, {"<script>": QUESTION}).read("report.html").decode()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; A lighthouse keeper" in page
    assert "https://example.org/&lt;script&gt;" in page


def test_ids_texts_and_kinds_follow_the_settings(tmp_path: Path) -> None:
    rows = [{"key": 7, "asked": [QUESTION, SHORT], "more": None}, {"key": 8, "asked": [FILLER], "more": "x"}]
    path = tmp_path / "quiz.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    one = EvaluationSet(name="quiz", path=str(path), kind="parquet", fields=("asked", "more"), id_field="key")
    made = looked_at(tmp_path, DecontaminateConfig(sets=(one,)), {"page": f"{QUESTION} {SHORT}"})
    assert matches(made)["page"] == [("7", 1.0)]


def test_items_that_are_too_short_are_counted_and_not_searched(tmp_path: Path) -> None:
    made = looked_at(
        tmp_path, sets(tmp_path, [{"query": TOO_SHORT}, {"query": ""}]), {"page": f"{TOO_SHORT} {QUESTION}"}
    )
    (row,) = made.table("sets.parquet").to_pylist()
    assert (row["items"], row["too_short"], made.record.metrics["contaminated"]) == (2, 2, 0)


def test_no_item_is_found_across_two_documents(tmp_path: Path) -> None:
    config, split = sets(tmp_path, [{"query": QUESTION}]), QUESTION.split()
    halves = [" ".join(split[:12]), " ".join(split[12:20])]
    rows = [document(text, f"{number}", id=f"{number:032x}") for number, text in enumerate(halves)]
    inputs = {"extracted": corpus(tmp_path, rows, parts=1)["extracted"]}
    assert matches(run_stage_in(tmp_path, STAGE, config, inputs)) == {}


def test_the_position_of_an_item_is_its_longest_run(tmp_path: Path) -> None:
    beginning = " ".join(QUESTION.split()[:20])
    text = f"{beginning} as I said before: {QUESTION} Or, again, {beginning}?"
    (row,) = rows_of(looked_at(tmp_path, sets(tmp_path, [{"query": QUESTION}]), {"page": text}), "matches/")
    assert text[row["begin"] : row["end"]] == QUESTION
    assert (row["share"], row["words"]) == (1, len(QUESTION.split()))


def test_a_page_with_a_whole_set_lists_the_items_with_the_largest_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.stages.decontaminate.passes.MOST_ITEMS", 3)
    questions = [" ".join(f"q{number}x{place}" for place in range(20 + number)) for number in range(8)]
    page = " . ".join(question if number > 4 else question[:-6] for number, question in enumerate(questions))
    made = looked_at(tmp_path, sets(tmp_path, [{"query": question} for question in questions]), {"page": page})
    assert matches(made) == {"page": [(f"quiz.jsonl:{number}", 1.0) for number in (8, 7, 6)]}
    (best,) = [row[CONTAMINATED] for row in rows_of(made, f"{CONTAMINATION}/") if row[CONTAMINATED]]
    assert best["items"] == 8


@settings(max_examples=50)
@given(st.text(st.sampled_from("aZ \n\t.'-½ﬁée\u0301\u200b\u00ad漢字กำ\u2028\x00İ_"), max_size=60))
def test_word_offsets_are_correct(text: str) -> None:
    split = normal_words(text)
    begins, ends = word_positions(text, len(split))
    for word, begin, end in zip(split, begins, ends, strict=True):
        assert word in normal_words(text[begin:end])


def test_an_item_in_a_script_without_spaces_is_found_by_words_with_its_place(tmp_path: Path) -> None:
    question = "灯塔管理员从黄昏到黎明统计经过的船只，星期一她数了十九艘，星期二多了一倍，一共有多少艘船经过这里？"
    made = looked_at(tmp_path, sets(tmp_path, [{"query": question}]), {"page": f"昨天有人问：{question}没有人知道。"})
    assert matches(made) == {"page": [("quiz.jsonl:1", 1.0)]}
    (row,) = rows_of(made, "matches/")
    assert (row["begin"], row["end"]) == (6, 6 + len(question))


def test_sets_on_an_object_store_are_read_there(s3: S3Server, tmp_path: Path) -> None:
    store = Store(f"s3://sluice/{tmp_path.name}")
    with store.write("quiz.jsonl") as file:
        file.write(json.dumps({"query": QUESTION}).encode())
    one = EvaluationSet(name="quiz", path=f"{store.root}/*.jsonl", fields=("query",))
    made = looked_at(tmp_path, DecontaminateConfig(sets=(one,)), {"page": QUESTION})
    assert matches(made)["page"] == [("quiz.jsonl:1", 1.0)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"query": "a"}\n{"query": \n', r"quiz\.jsonl, line 2: not JSON"),
        ('{"query": "a"}\n\n["b"]\n', r"quiz\.jsonl, line 3: not a JSON object"),
        ('{"question": "a", "n": 1}\n', r'line 1: no field "query" \(fields: n, question\)'),
        ('{"query": {"text": "a"}}\n', r'line 1: the field "query" is neither a text nor a list of texts'),
        ("\n", r'the evaluation set "quiz" has no item: .*quiz\.jsonl is empty'),
    ],
)
def test_an_unreadable_row_is_named_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    config = sets(tmp_path, [])
    (tmp_path / "quiz.jsonl").write_text(content)
    with pytest.raises(InputError, match=said):
        looked_at(tmp_path, config, {"page": QUESTION})
