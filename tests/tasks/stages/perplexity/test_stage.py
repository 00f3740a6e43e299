"""The stage: models from reference text separate prose from noise, and are equal for any number of workers."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.filters.ngram.files import load_artifact, read_arpa
from tasks.formats.documents.document import DOCUMENT
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tasks.stages.perplexity.reference import CANDIDATE, draw, files_with_texts, listing, lowest, ranks
from tasks.stages.perplexity.stage import external
from tests.conftest import run_stage_in
from tests.corpora import by_hand, kept_document
from tests.s3_server import S3Server
from tests.tasks.stages.perplexity.learning import babble

STAGE = "tasks.stages.perplexity.stage"
Run = Callable[..., Artifact]


def texts_of(shared_data: Path, domain: str) -> list[str]:
    with pa.input_stream(shared_data / "text_domains" / f"{domain}.jsonl.zst", compression="zstd") as file:
        return [json.loads(line)["text"] for line in file.read().decode().splitlines()]


def json_lines(folder: Path, texts: list[str], name: str = "a.jsonl", field: str = "text") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return str(path)


def babble_config(folder: Path, **more: object) -> PerplexityConfig:
    json_lines(folder / "refs", babble(), "a.jsonl")
    json_lines(folder / "refs", babble(seed=2), "b.jsonl")
    reference = ReferenceText(name="babble", kind="jsonl", path=f"{folder}/refs/*.jsonl")
    return PerplexityConfig(references=(reference,), **{"order": 3, **more})  # type: ignore[arg-type]


def extracted(folder: Path, rows: list[dict]) -> Artifact:
    documents = [{name: row.get(name) for name in DOCUMENT.names} for row in rows]
    return by_hand(folder, "extracted", 2, {"documents": (DOCUMENT, documents)})


def test_the_same_text_gives_the_same_bytes_on_any_number_of_workers(tmp_path: Path) -> None:
    config = babble_config(tmp_path)
    alone = run_stage_in(tmp_path / "one", STAGE, config)
    several = run_stage_in(tmp_path / "two", STAGE, config, workers=2)
    assert len(alone.files("und/")) == 7
    assert alone.record.content == several.record.content


def test_the_same_text_in_other_files_gives_the_same_model(tmp_path: Path, run_stage: Run) -> None:
    first = run_stage(STAGE, babble_config(tmp_path), kind="first")
    texts = [*babble(), *babble(seed=2)]
    random.Random(1).shuffle(texts)
    json_lines(tmp_path / "more", [*texts[:200], texts[0], ""], "x.jsonl.gz")
    (tmp_path / "more" / "x.jsonl.gz").write_bytes(gzip.compress((tmp_path / "more" / "x.jsonl.gz").read_bytes()))
    json_lines(tmp_path / "more", texts[200:], "y.jsonl.gz")
    (tmp_path / "more" / "y.jsonl.gz").write_bytes(gzip.compress((tmp_path / "more" / "y.jsonl.gz").read_bytes()))
    reference = ReferenceText(name="babble", kind="jsonl", path=f"{tmp_path}/more/*.gz")
    second = run_stage(STAGE, PerplexityConfig(references=(reference,), order=3), kind="second")
    for name in ("model.json", "model.arpa.gz", "order-1.npy", "order-2.npy", "order-3.npy"):
        assert first.read(f"und/{name}") == second.read(f"und/{name}"), name


def test_the_arpa_file_equals_the_model(tmp_path: Path, run_stage: Run) -> None:
    made = run_stage(STAGE, babble_config(tmp_path))
    path = made.local("und/model.arpa.gz")
    assert len(read_arpa(path).levels) == 3
    from tasks.filters.ngram.files import load_file

    texts = babble(30, seed=8)
    assert (load_file(path).score(texts).log10 == load_artifact(made)["und"].scorer.score(texts).log10).all()


def test_held_out_texts_are_kept_from_training_and_measured(tmp_path: Path, run_stage: Run) -> None:
    config = babble_config(tmp_path, heldout_share=0.2)
    found = files_with_texts(config.references, None)
    chosen = draw([listing(task) for task in enumerate(found)], config)
    texts = [list(unit.texts()) for unit in found]
    learnt, held = (
        {texts[unit][place] for unit, places in enumerate(side) for place in places}
        for side in (chosen.training, chosen.heldout)
    )
    assert not learnt & held
    assert learnt | held == {text for some in texts for text in some}
    assert 0.1 < len(held) / len(learnt | held) < 0.3
    metrics = run_stage(STAGE, config).record.metrics
    assert metrics["und/heldout_texts"] == len(held)
    assert 1 < metrics["und/heldout_perplexity_known"] < metrics["und/heldout_perplexity"] < 400


def test_a_sample_is_drawn_up_to_its_size_and_another_seed_draws_another() -> None:
    texts = np.zeros(1000, CANDIDATE)
    texts["hash"], texts["size"], texts["place"] = np.arange(1000), 10, np.arange(1000)

    def drawn(seed: int, size: int) -> set[int]:
        texts["rank"] = ranks(texts["hash"], f"sample/{seed}")
        return set(lowest(texts, size)["place"].tolist())

    first, second = drawn(0, 3000), drawn(1, 3000)
    assert len(first) == len(second) == 300
    assert 50 < len(first & second) < 150
    assert len(drawn(0, 1)) == 1


def test_each_language_gets_its_own_model(tmp_path: Path, run_stage: Run) -> None:
    json_lines(tmp_path, babble(), "en.jsonl")
    json_lines(tmp_path, [text.replace("w", "v") for text in babble()], "de.jsonl")
    references = tuple(
        ReferenceText(name=name, kind="jsonl", path=f"{tmp_path}/{name}.jsonl", language=name) for name in ("en", "de")
    )
    made = run_stage(STAGE, PerplexityConfig(references=references, order=2))
    models = load_artifact(made)
    assert sorted(models) == ["de", "en"]
    assert models["en"].scorer.score(["wba"]).unknown[0] == 0 < models["de"].scorer.score(["wba"]).unknown[0]
    assert {"de/heldout_perplexity", "en/heldout_perplexity"} <= set(made.record.metrics)


def test_documents_of_the_corpus_can_be_the_reference_and_set_the_cut_points(tmp_path: Path, run_stage: Run) -> None:
    rows = [kept_document(f"https://a.org/{n}", text, "books") for n, text in enumerate(babble())]
    rows += [kept_document(f"https://b.org/{n}", text, "web") for n, text in enumerate(babble(300, seed=7))]
    reference = ReferenceText(name="books", kind="documents")
    config = PerplexityConfig(references=(reference,), order=2)
    made = run_stage(STAGE, config, {"extracted": extracted(tmp_path, rows)})
    about = json.loads(made.read("und/about.json"))
    different = sorted({row["text"] for row in rows if row["source"] == "web"})
    assert about["cuts_of"] == f'{len(different)} documents of the source "web"'
    perplexity = load_artifact(made)["und"].scorer.score(different).perplexity
    head, middle = about["cuts"]
    assert abs((perplexity <= head + 1e-3).mean() - 1 / 3) < 0.02
    assert abs((perplexity <= middle + 1e-3).mean() - 2 / 3) < 0.02


def test_the_cut_points_of_a_language_come_from_documents_in_it_and_others_set_the_rest(
    tmp_path: Path, run_stage: Run
) -> None:
    english = [f"It was the {n}th day of the long journey, and they had seen nothing but water." for n in range(150)]
    german = [f"Am {n}. Tag der langen Reise hatten sie noch immer nichts als Wasser gesehen." for n in range(120)]
    french = [f"Au {n}e jour du long voyage, ils n'avaient toujours vu que de l'eau." for n in range(20)]
    rows = [kept_document(f"https://b.org/{n}", text) for n, text in enumerate([*english, *german, *french])]
    references = []
    for language, texts in (("en", english), ("und", german)):
        path = json_lines(tmp_path, texts, f"{language}.jsonl")
        references.append(ReferenceText(name=language, kind="jsonl", path=path, language=language))
    config = PerplexityConfig(references=tuple(references), order=2)
    made = run_stage(STAGE, config, {"extracted": extracted(tmp_path, rows)})
    said = [json.loads(made.read(f"{language}/about.json"))["cuts_of"] for language in ("en", "und")]
    assert said == ['150 documents of the source "web"', '140 documents of the source "web"']


def test_for_a_small_corpus_the_cut_points_come_from_held_out_text(tmp_path: Path, run_stage: Run) -> None:
    rows = [kept_document(f"https://b.org/{n}", text) for n, text in enumerate(babble(20, seed=7))]
    made = run_stage(STAGE, babble_config(tmp_path), {"extracted": extracted(tmp_path, rows)})
    assert json.loads(made.read("und/about.json"))["cuts_of"] == "the texts held out"


def test_the_card_states_the_training_data_of_the_model(tmp_path: Path, run_stage: Run) -> None:
    json_lines(tmp_path, babble())
    reference = ReferenceText(name="tales", kind="jsonl", path=f"{tmp_path}/a.jsonl", licence="CC-BY-4.0")
    made = run_stage(STAGE, PerplexityConfig(references=(reference,), order=3))
    card, metrics = made.read("und/card.md").decode(), made.record.metrics
    assert "| tales | JSON lines |" in card
    assert "CC-BY-4.0" in card
    assert f"perplexity: {metrics['und/heldout_perplexity']:.1f}" in card
    assert f"Head up to {metrics['und/cut_head']:.1f}" in card
    assert str(tmp_path) not in card


def test_one_text_per_file_is_read_in_its_encoding(tmp_path: Path) -> None:
    for number, encoding in enumerate(("utf-8", "windows-1252", "utf-16")):
        (tmp_path / f"{number}.txt").write_bytes("Ein Stück, größer als üblich. Mäßig, aber schön.\n".encode(encoding))
    found = files_with_texts([ReferenceText(name="files", kind="text", path=f"{tmp_path}/*.txt")], None)
    assert {text for unit in found for text in unit.texts()} == {"Ein Stück, größer als üblich. Mäßig, aber schön."}


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\0\0\0")
    (unit,) = files_with_texts([ReferenceText(name="files", kind="text", path=f"{tmp_path}/*.txt")], None)
    with pytest.raises(InputError, match=r"picture\.txt is not a text file"):
        list(unit.texts())


def test_references_can_be_on_an_object_store(tmp_path: Path, s3: S3Server) -> None:
    here = run_stage_in(tmp_path / "here", STAGE, babble_config(tmp_path))
    url = "s3://sluice/test_perplexity"
    for path in (tmp_path / "refs").iterdir():
        with Store(url).write(f"refs/{path.name}") as file:
            file.write(path.read_bytes())
    reference = ReferenceText(name="babble", kind="jsonl", path=f"{url}/refs/*.jsonl")
    config = PerplexityConfig(references=(reference,), order=3)
    there = run_stage_in(f"{url}/store", STAGE, config)
    assert there.record.content == here.record.content
    assert len(external(config)["reference:babble"]) == 2


def test_files_outside_the_store_are_named_so_that_their_bytes_are_pinned(tmp_path: Path) -> None:
    files = external(babble_config(tmp_path))
    assert files == {"reference:babble": [f"{tmp_path}/refs/a.jsonl", f"{tmp_path}/refs/b.jsonl"]}


def test_an_interrupted_run_resumes_with_the_missing_languages(tmp_path: Path, run_stage: Run) -> None:
    json_lines(tmp_path, babble(), "ok.jsonl")
    broken = tmp_path / "zz.jsonl"
    broken.write_text("{")
    references = tuple(
        ReferenceText(name=name, kind="jsonl", path=f"{tmp_path}/{name}.jsonl", language=language)
        for name, language in (("ok", "aa"), ("zz", "zz"))
    )
    config = PerplexityConfig(references=references, order=2)
    with pytest.raises(InputError, match=r"zz\.jsonl, line 1: not JSON"):
        run_stage(STAGE, config)
    first = next((tmp_path / "test").glob("*/dev/aa/model.json"))
    made_at = first.stat().st_mtime_ns
    json_lines(tmp_path, babble(seed=2), "zz.jsonl")
    made = run_stage(STAGE, config)
    assert sorted(load_artifact(made)) == ["aa", "zz"]
    assert first.stat().st_mtime_ns == made_at


def test_an_empty_reference_is_named(tmp_path: Path, run_stage: Run) -> None:
    with pytest.raises(InputError, match="no reference text"):
        run_stage(STAGE, PerplexityConfig())
    nowhere = ReferenceText(name="gone", kind="text", path=f"{tmp_path}/gone/*.txt")
    with pytest.raises(InputError, match='of the reference "gone" matches no file'):
        run_stage(STAGE, PerplexityConfig(references=(nowhere,)))
    one = ReferenceText(name="one", kind="jsonl", path=json_lines(tmp_path, ["only this", "only this", ""]))
    with pytest.raises(InputError, match="have 1 distinct texts"):
        run_stage(STAGE, PerplexityConfig(references=(one,)))
    other = ReferenceText(name="other", kind="jsonl", path=json_lines(tmp_path, ["a", "b"], "b.jsonl", field="body"))
    with pytest.raises(InputError, match=r'b\.jsonl, line 1: the field "text" is not text'):
        run_stage(STAGE, PerplexityConfig(references=(other,)))
    corpus = ReferenceText(name="web", kind="documents")
    with pytest.raises(InputError, match="extract first"):
        run_stage(STAGE, PerplexityConfig(references=(corpus,)))


def test_invalid_settings_are_refused() -> None:
    for wrong in (
        {"prune": (1, 1)},
        {"prune": (0, 2, 1)},
        {"order": 1},
        {"references": [{"name": "a", "kind": "text"}]},
        {"references": [{"name": "a", "kind": "documents", "path": "/x"}]},
        {"references": [{"name": "a", "kind": "text", "path": "x/*.txt"}]},
        {"references": [{"name": "a", "kind": "documents"}] * 2},
    ):
        with pytest.raises(ValidationError):
            PerplexityConfig.model_validate(wrong)


def test_the_last_pruning_threshold_applies_to_longer_n_grams() -> None:
    assert PerplexityConfig(order=5, prune=(0, 0, 1)).thresholds == (0, 0, 1, 1, 1)
    assert PerplexityConfig(order=2, prune=(0, 0, 1)).thresholds == (0, 0)


def better_than(low: np.ndarray, high: np.ndarray) -> float:
    """The share of pairs whose first value is lower: the area under the ROC curve."""
    return float(np.mean(low[:, None] < high[None, :]) + 0.5 * np.mean(low[:, None] == high[None, :]))


def test_prose_has_lower_perplexity_than_shuffled_words_and_noise(
    tmp_path: Path, shared_data: Path, run_stage: Run
) -> None:
    references = tuple(
        ReferenceText(name=name, kind="jsonl", path=f"{shared_data}/text_domains/{name}.jsonl.zst")
        for name in ("wiki", "masc", "speech")
    )
    made = run_stage(STAGE, PerplexityConfig(references=references))
    # 288 when this was written.
    assert made.record.metrics["und/heldout_perplexity"] < 300
    scorer = load_artifact(made)["und"].scorer
    prose = [text for text in texts_of(shared_data, "web") if len(text) > 500 and text.count(" the ") > 3][:60]
    draw_ = random.Random(1)
    shuffled = [" ".join(draw_.sample(text.split(), len(text.split()))) for text in prose]
    garbled = ["".join(draw_.sample(text, len(text))) for text in prose]
    low = scorer.score(prose).perplexity
    assert better_than(low, scorer.score(shuffled).perplexity) > 0.9
    assert better_than(low, scorer.score(garbled).perplexity) > 0.99
    assert (low < scorer.score(shuffled).perplexity).mean() > 0.95
