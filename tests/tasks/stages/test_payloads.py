"""What stages send to their workers is as large for a thousand parts as for ten: no record of all parts goes along."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tasks.core.artifact import Artifact, ArtifactId, ArtifactRecord, FileEntry, PartRecord
from tasks.core.engine import Engine
from tasks.core.merges.range_merge import MergedRanges, RangeMerge, plan_levels
from tasks.core.part import PartSpec, part_names
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.formats.dedup.exchange import Exchange, read_run
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.tokens.shard import TRAIN, shard_name, shard_path
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.annotate import stage as annotate
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks import stage as chunks
from tasks.stages.classifiers import ClassifierSettings, CrawlTexts, Texts
from tasks.stages.classifiers.texts import gather
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.resolve import DROPPED
from tasks.stages.consolidate.stage import consolidate_part
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet
from tasks.stages.decontaminate import stage as decontaminate
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup import stage as dedup
from tasks.stages.paragraphs import ParagraphsConfig
from tasks.stages.paragraphs import stage as paragraphs
from tasks.stages.paragraphs.passes import mark_part
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tasks.stages.perplexity.stage import sample_crawl
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig, pack
from tasks.stages.tokens.encode import thresholds
from tasks.stages.tokens.sample import draw

FEW, MANY = 10, 1000
MOST_BYTES = 4096


class _Weighed(Exception):
    """The function, and the largest item, as they are pickled for the workers, in bytes."""


class _Scales(Engine):
    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        _weighed(fn, items)


def _weighed(fn: Any, items: Sequence[Any]) -> NoReturn:
    raise _Weighed(len(pickle.dumps(fn)), max(len(pickle.dumps(item)) for item in items))


def _artifact(folder: Path, name: str, folders: Sequence[str], parts: int) -> Artifact:
    """An artifact of so many parts, of which only the record exists."""
    records = tuple(
        PartRecord(
            name=part,
            rows_in=100,
            rows_out=100,
            rejected={},
            files=tuple(FileEntry(path=f"{one}/{part}.parquet", bytes=9, sha256="a" * 64, rows=100) for one in folders),
            metrics={},
        )
        for part in part_names(parts)
    )
    given: dict[str, Any] = {"config": {}, "inputs": (), "code": {}, "rejected": {}, "metrics": {}, "host": {}}
    counts = {"stage_version": 1, "rows_in": 1, "rows_out": 1, "bytes": 1}
    texts = {"stage": name, "member": "", "fingerprint": "f" * 64, "content": "c" * 64, "note": ""}
    now = datetime.now(UTC)
    address = ArtifactId(f"test/{name}", "dev")
    record = ArtifactRecord(
        artifact=str(address), manifests=(), members=(), started=now, finished=now, **given, **counts, **texts
    )
    return Artifact(Store(str(folder)), address, record, parts=records)


def _annotate(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    output = Output(extracted.store, ArtifactId("test/attributes", "dev"), "f" * 64)
    annotate.run(AnnotateConfig(use=("gopher_quality",)), Inputs({"extracted": extracted}), output, _Scales())


def _dedup(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    scores = _artifact(folder, "measured/prose_score", ["measured"], parts)
    output = Output(extracted.store, ArtifactId("test/duplicates", "dev"), "f" * 64)
    dedup.run(DedupConfig(), Inputs({"extracted": extracted, "prose_score": scores}), output, _Scales())


def _decontaminate(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    (file := folder / "quiz.jsonl").write_text('{"query": "what is the longest river of the smallest continent"}\n')
    sets = tuple(EvaluationSet(name=f"quiz-{number}", path=str(file), fields=("query",)) for number in range(50))
    output = Output(extracted.store, ArtifactId("test/contamination", "dev"), "f" * 64)
    decontaminate.run(DecontaminateConfig(sets=sets), Inputs({"extracted": extracted}), output, _Scales())


def _paragraphs(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    output = Output(extracted.store, ArtifactId("test/paragraphs", "dev"), "f" * 64)
    paragraphs.run(ParagraphsConfig(enabled=True), Inputs({"extracted": extracted}), output, _Scales())


def _paragraphs_marked(folder: Path, parts: int) -> None:
    own = _artifact(folder, "paragraphs", ["places"], parts).folder
    work = partial(mark_part, own, own, Buckets("counts", MANY))
    _weighed(work, [PartSpec(name, name) for name in part_names(parts)])


def _consolidate(folder: Path, parts: int) -> None:
    extracted, attributes, duplicates = (
        _artifact(folder, name, [name], parts) for name in ("documents", "attributes", "duplicates")
    )
    aligned = AlignedInputs(extracted, attributes, duplicates, extracted.store, "test/documents/dev")
    specs = [PartSpec(name, number) for number, name in enumerate(part_names(parts))]
    keys, read = MANY << 32, partial(read_run, DROPPED)
    merged = MergedRanges(RangeMerge("to-parts", DROPPED, read, keys), plan_levels("to-parts", MANY, MANY, keys, 1))
    copies = Exchange(DROPPED, MANY, keys, read, merged=merged)
    _weighed(partial(consolidate_part, ConsolidateConfig(), aligned.parts, copies), specs)


def _encode(folder: Path, parts: int) -> None:
    documents = _artifact(folder, "documents", ["kept", "rejected"], parts)
    thresholds(documents, documents.files("kept/"), _Scales(), EncodeConfig())


def _pack(folder: Path, parts: int, by: str = "source") -> None:
    shards = _artifact(folder, "shards", [], parts)
    paths = [shard_path(shard_name("web", TRAIN, number, 0)) for number in range(parts)]
    entries = [FileEntry(path=path, bytes=9, sha256="a" * 64, rows=100, tokens=2**28) for path in paths]
    records = [part.model_copy(update={"files": (entry,)}) for part, entry in zip(shards.parts, entries, strict=True)]
    output = Output(shards.store, ArtifactId("test/plan", "dev"), "f" * 64)
    pack.run(PackConfig(by=by), Inputs({"shards": shards.limited_to(records)}), output, _Scales())


def _pack_by_language(folder: Path, parts: int) -> None:
    _pack(folder, parts, "language")


def _chunks(folder: Path, parts: int) -> None:
    documents = _artifact(folder, "documents", ["kept", "rejected"], parts)
    inputs = {role: _artifact(folder, role, [role], parts) for role in ("extracted", "tokenizer", "takedowns")}
    output = Output(documents.store, ArtifactId("test/chunks", "dev"), "f" * 64)
    chunks.run(ChunksConfig(enabled=True), Inputs({"documents": documents, **inputs}), output, _Scales())


def _tokenizer(folder: Path, parts: int) -> None:
    draw(_artifact(folder, "documents", ["kept", "rejected"], parts), _Scales(), TokenizerConfig())


def _classifiers(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    (file := folder / "reference.jsonl").write_text('{"text": "a good page"}\n')
    texts, crawl = (Texts(path=str(file), label="reference"),), CrawlTexts(label="web", documents=10)
    gather(ClassifierSettings(name="quality", texts=texts, positive="web", crawl=crawl), extracted, _Scales())


def _perplexity(folder: Path, parts: int) -> None:
    extracted = _artifact(folder, "extracted", ["documents", "rejected"], parts)
    reference = ReferenceText(name="web", kind="documents")
    sample_crawl(PerplexityConfig(references=(reference,), cut_source="web"), extracted, _Scales())


@pytest.mark.parametrize(
    "stage",
    [
        _annotate,
        _dedup,
        _decontaminate,
        _paragraphs,
        _paragraphs_marked,
        _consolidate,
        _encode,
        _pack,
        _pack_by_language,
        _chunks,
        _tokenizer,
        _classifiers,
        _perplexity,
    ],
)
def test_task_payloads_do_not_grow_with_the_number_of_parts(stage: Callable[[Path, int], None], tmp_path: Path) -> None:
    sizes = []
    for parts in (FEW, MANY):
        (folder := tmp_path / f"{parts:05}").mkdir()
        with pytest.raises(_Weighed) as weighed:
            stage(folder, parts)
        sizes.append(weighed.value.args)
    few, many = sizes
    assert few[0] == many[0] <= MOST_BYTES
    assert many[1] - few[1] <= 2, "an item has a larger number in it, and nothing else"
    assert many[1] <= MOST_BYTES
