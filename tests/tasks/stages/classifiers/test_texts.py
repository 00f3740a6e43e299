import gzip
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.stages.classifiers import ClassifiersConfig, ClassifierSettings, CrawlTexts, FastTextSettings, Texts
from tasks.stages.classifiers.texts import gather
from tests.tasks.stages.classifiers.texts_by_hand import extracted_in, jsonl, learned, shop


@pytest.fixture
def crawl(tmp_path: Path) -> Artifact:
    return extracted_in(tmp_path, (shop(seed) for seed in range(300)), hosts=20)


def settings_for(path: str, **changes: object) -> ClassifierSettings:
    settings = {
        "name": "some",
        "texts": (Texts(path=path, label="reference"),),
        "crawl": CrawlTexts(documents=90),
        "positive": "reference",
        "heldout_share": 0.3,
    }
    return ClassifierSettings(**{**settings, **changes})


def test_no_text_and_no_site_is_on_both_sides_of_the_split(tmp_path: Path, crawl: Artifact) -> None:
    rows = [{"text": learned(seed), "book": seed // 10} for seed in range(200)] * 2
    path = jsonl(tmp_path / "books.jsonl", rows)
    texts = (Texts(path=path, label="reference", group_field="book"),)
    found = gather(settings_for(path, texts=texts), crawl, Engine())
    assert found.rejected == {"copy": 200}
    assert {one.group for one in found.train}.isdisjoint(one.group for one in found.heldout)
    assert {one.key for one in found.train}.isdisjoint(one.key for one in found.heldout)
    assert {one.group.split("=")[0] for one in found.train} == {"book", "host"}


def test_a_crawl_of_few_sites_can_be_split_by_document(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", ({"text": learned(seed)} for seed in range(50)))
    one_site = extracted_in(tmp_path, (shop(seed) for seed in range(100)), hosts=1)
    with pytest.raises(InputError, match=r'of the label "crawl".*set split_by = "document"'):
        gather(settings_for(path), one_site, Engine())
    found = gather(settings_for(path, crawl=CrawlTexts(documents=90, split_by="document")), one_site, Engine())
    for side in (found.train, found.heldout):
        assert {one.label for one in side} == {"reference", "crawl"}


def test_copies_that_differ_in_case_and_spaces_are_copies(tmp_path: Path, crawl: Artifact) -> None:
    rows = [{"text": text} for seed in range(50) for text in (learned(seed), f"  {learned(seed).upper()}\n\n!")]
    found = gather(settings_for(jsonl(tmp_path / "rows.jsonl", rows)), crawl, Engine())
    assert found.rejected == {"copy": 50}


def test_the_crawl_sample_has_the_configured_size_and_sources(tmp_path: Path) -> None:
    both = extracted_in(tmp_path, (shop(seed) for seed in range(200)), source="code")
    path = jsonl(tmp_path / "rows.jsonl", ({"text": learned(seed)} for seed in range(50)))
    found = gather(settings_for(path, crawl=CrawlTexts(documents=90, sources=("code",))), both, Engine())
    assert sum(one.label == "crawl" for one in (*found.train, *found.heldout)) == 90


def test_the_order_of_files_and_rows_does_not_matter(tmp_path: Path, crawl: Artifact) -> None:
    rows = [{"text": learned(seed)} for seed in range(60)]
    one = gather(settings_for(jsonl(tmp_path / "a.jsonl", rows)), crawl, Engine())
    other = gather(settings_for(jsonl(tmp_path / "a.jsonl", rows[::-1])), crawl, Engine())
    assert (one.train, one.heldout) == (other.train, other.heldout)


def test_a_text_is_truncated_to_the_input_size_of_the_classifier(tmp_path: Path, crawl: Artifact) -> None:
    path = jsonl(tmp_path / "rows.jsonl", ({"text": learned(seed) * 50} for seed in range(50)))
    found = gather(settings_for(path, chars=100), crawl, Engine())
    assert max(len(one.text) for one in found.train) == 100


def test_each_label_is_capped(tmp_path: Path, crawl: Artifact) -> None:
    path = jsonl(tmp_path / "rows.jsonl", ({"text": learned(seed)} for seed in range(80)))
    found = gather(settings_for(path, max_per_label=40), crawl, Engine())
    labels = [one.label for one in (*found.train, *found.heldout)]
    assert (labels.count("reference"), labels.count("crawl")) == (40, 40)
    assert found.rejected["over_max"] == 40 + 50


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_files_can_be_compressed_and_labels_need_not_be_words(tmp_path: Path, crawl: Artifact, ending: str) -> None:
    rows = [{"body": learned(seed), "good": True} for seed in range(40)]
    rows += [{"body": shop(seed), "good": False} for seed in range(40)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / f"rows{ending}"
    if ending.endswith(".gz"):
        path.write_bytes(gzip.compress(data))
    elif ending.endswith(".zst"):
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(data)
    else:
        path.write_bytes(data)
    texts = (Texts(path=str(tmp_path / "rows*"), text_field="body", label_field="good"),)
    found = gather(settings_for(str(path), texts=texts, crawl=None, positive="true"), crawl, Engine())
    assert {one.label for one in found.train} == {"true", "false"}


def test_integral_float_grades_equal_integers_and_unknown_grades_are_reported(
    tmp_path: Path, crawl: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": learned(seed), "label": 3 if seed % 2 else 3.0} for seed in range(40)]
    rows += [{"text": shop(seed), "label": 0} for seed in range(40)] + [{"text": shop(99), "label": 2.5}]
    texts = (Texts(path=jsonl(tmp_path / "rows.jsonl", rows), relabel={"3": "edu", "0": "other"}),)
    found = gather(settings_for("/a", texts=texts, crawl=None, positive="edu"), crawl, Engine())
    assert Counter(one.label for one in [*found.train, *found.heldout]) == {"edu": 40, "other": 40}
    assert found.rejected["other_label"] == 1
    assert "skipped 1 texts whose label is not in relabel: '2.5' (1)" in caplog.text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": 5, "label": "a"}', r"bad.jsonl, line 3: no row .*the field \"text\" is not text"),
        ('{"text": ["x"], "label": "a"}', r"bad.jsonl, line 3: no row .*the field \"text\" is not text"),
        ('{"text": {}, "label": "a"}', r"bad.jsonl, line 3: no row .*the field \"text\" is not text"),
        ('{"label": "a"}', r"bad.jsonl, line 3: no row .*KeyError: 'text'"),
        ('"text"', r"bad.jsonl, line 3: no row .*TypeError"),
        ('{"text": "a", "label": "\\ud800"}', r"bad.jsonl, line 3: no row .*UnicodeEncodeError"),
        ("[" * 100_000, r"bad.jsonl, line 3: not JSON"),
    ],
)
def test_an_unusable_row_is_named_with_its_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text(f'{{"text": "good", "label": "b"}}\n\n{line}\n')
    settings = settings_for("/a", texts=(Texts(path=str(tmp_path / "bad.jsonl")),), crawl=None)
    with pytest.raises(InputError, match=said):
        gather(settings, None, Engine())


def test_a_row_without_a_text_is_skipped(tmp_path: Path, crawl: Artifact) -> None:
    rows = [{"text": learned(seed)} for seed in range(50)] + [{"text": None}, {"text": ""}]
    assert gather(settings_for(jsonl(tmp_path / "rows.jsonl", rows)), crawl, Engine()).rejected["empty"] == 2


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "none.jsonl.gz", "cut.jsonl.zst"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    data = "".join(json.dumps({"text": learned(seed), "label": "a"}) + "\n" for seed in range(5000)).encode()
    packed = gzip.compress(data) if name.endswith(".gz") else pa.compress(data, codec="zstd", asbytes=True)
    (tmp_path / name).write_bytes(data[:500] if name.startswith("none") else packed[:-40])
    settings = settings_for("/a", texts=(Texts(path=str(tmp_path / name)),), crawl=None)
    with pytest.raises(InputError, match=rf"{name} cannot be read"):
        gather(settings, None, Engine())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Texts(path="/a", label="x", relabel={"a": "b"}), "one of them"),
        (lambda: FastTextSettings(char_ngrams=(3, 2)), "char_ngrams"),
        (lambda: settings_for("/a", method="signals", positive=""), "positive"),
        (lambda: ClassifiersConfig(train=(settings_for("/a"), settings_for("/b"))), "two classifiers"),
        (lambda: settings_for("/a", name="Not a name"), "pattern"),
        (lambda: settings_for("here.jsonl"), 'the path "here.jsonl" is not absolute: begin it with / or s3://'),
        (lambda: settings_for("/a", positive="referense"), 'no text has the label "referense": did you mean "refer'),
        (lambda: settings_for("/a", positive="crowl"), 'no text has the label "crowl": did you mean "crawl"'),
        (
            lambda: settings_for("/a", positive="good", texts=(Texts(path="/a", relabel={"1": "good one"}),)),
            'no text has the label "good"',
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused(build: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()  # type: ignore[operator]
