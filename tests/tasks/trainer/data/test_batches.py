"""Batches follow the plan and the order, with correct labels, for any number of ranks and threads."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.config import TrainSpec
from tasks.trainer.data import batches
from tasks.trainer.data.batches import Batch, Batches, Loader
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.spec import make_spec, open_artifact
from tests.corpora import Made, corpus, tokens_in
from tests.s3_server import S3Server
from tests.tasks.trainer.small_run import small_config, small_spec


def batches_of(made: Made, folder: Path) -> Batches:
    return Batches(small_spec(made, folder))


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_every_label_is_the_next_token_of_its_own_document(
    tmp_path: Path, method: Literal["concat", "best_fit"]
) -> None:
    made = tokens_in(tmp_path / "made", corpus(30), seq_len=256, method=method)
    batches, shards = batches_of(made, tmp_path), ShardSet.open(made.shards)
    eos, checked, padded = batches.eos_id, 0, 0
    for step in range(8):
        batch, rows = batches.batch(step), batches.order.batch(step)
        for row, (source, sequence, _) in enumerate(rows):
            place = 0
            for number, at, offset, length in batches.plan.slices(source, sequence).tolist():
                shard = shards.shard(batches.plan.shards[number])
                document, start = shard.slice(at, 0, int(shard.lengths[at])), offset - shard.token_offset(at)
                end = start + length
                assert batch.tokens[row, place : place + length].tolist() == document[start:end].tolist()
                following = np.append(document[1:], [eos])[start:end]
                labels = batch.labels[row, place : place + length].numpy()
                # If a document continues in another sequence, only the last token of this one has a label from it.
                inside = (document[start:end] != eos) & (labels != IGNORED)
                assert inside.sum() >= (document[start:end] != eos).sum() - 1
                assert labels[inside].tolist() == following[inside].tolist()
                checked += inside.sum()
                place += length
            assert (batch.tokens[row, place:] == eos).all()
            assert (batch.labels[row, place:] == IGNORED).all()
            if place < batches.seq_len:
                assert batch.labels[row, place - 1] == IGNORED
                assert batch.documents[row, place] != batch.documents[row, place - 2]
                padded += 1
    assert checked > 900
    assert bool(padded) == (method == "best_fit")


def test_end_of_text_opens_the_next_document_and_predicts_its_first_token(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    seen = 0
    for step in range(8):
        batch = batches.batch(step)
        ends = (batch.tokens[:, :-1] == batches.eos_id).nonzero().tolist()
        for row, place in ends:
            assert batch.documents[row, place] == batch.documents[row, place + 1]
            assert batch.labels[row, place] == batch.tokens[row, place + 1]
            if place:
                assert batch.documents[row, place] != batch.documents[row, place - 1]
                assert batch.labels[row, place - 1] == batches.eos_id
            seen += 1
        last = batch.tokens[:, -1] == batches.eos_id
        assert (batch.labels[last, -1] == IGNORED).all()
        assert (batch.labels[~last, -1] != IGNORED).all()
    assert seen > 5


def test_the_batch_is_a_function_of_the_step(made: Made, tmp_path: Path) -> None:
    one, other = batches_of(made, tmp_path / "one"), batches_of(made, tmp_path / "other")
    for step in (5, 0, 5):
        assert one.batch(step).tokens.equal(other.batch(step).tokens)
    assert not one.batch(0).tokens.equal(one.batch(1).tokens)


def test_microbatch_n_of_m_has_the_sequences_n_n_plus_m_and_so_on(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    batch, parts = batches.batch(0), batches.microbatches(0, [1, 0])
    for number in (0, 1):
        assert parts[number].tokens.equal(batch.tokens[number::2])
        assert parts[number].labels.equal(batch.labels[number::2])
        assert parts[number].documents.equal(batch.documents[number::2])
        assert batches.microbatches(0, [number])[number].tokens.equal(parts[number].tokens)


def test_the_bounds_have_the_start_of_each_document_and_the_longest_length(made: Made, tmp_path: Path) -> None:
    batches = batches_of(made, tmp_path)
    for step in range(4):
        batch = batches.batch(step)
        starts, longest = batch.bounds.starts, batch.bounds.longest
        rows = batch.documents + 1000 * torch.arange(4)[:, None]
        lengths = [len(list(group)) for _, group in itertools.groupby(rows.flatten().tolist())]
        edges = [0, *itertools.accumulate(lengths)]
        assert starts.tolist() == edges + [edges[-1]] * (len(starts) - len(edges))
        assert starts.dtype == torch.int32
        assert max(lengths) <= longest <= min(2 * max(lengths), batches.seq_len)


def test_batches_for_a_gpu_are_in_page_locked_memory_and_their_copy_is_not_waited_for(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, waited = list[torch.Tensor](), list[bool]()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    batches = batches_of(made, tmp_path)
    for device, copies in (("cpu", 0), ("cuda", 4)):
        with Loader(batches, [0], 1, torch.device(device), workers=0) as loader:
            part = loader.microbatches(0)[0]
        assert len(pinned) == copies, "tokens, labels, documents and bounds"
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, _, *, non_blocking: waited.append(not non_blocking) or tensor
    )
    part.on(torch.device("cuda"))
    assert waited == [False] * 4


def test_slices_name_the_documents_of_a_step(made: Made, tmp_path: Path) -> None:
    batches, shards = batches_of(made, tmp_path), ShardSet.open(made.shards)
    pieces = [p for s, n, _ in batches.order.batch(0) for p in batches.plan.slices(s, n).tolist()]
    for named, (number, row, offset, length) in zip(batches.slices(0), pieces, strict=True):
        assert named["shard"] == batches.plan.shards[number]
        assert named["document"] == shards.shard(named["shard"]).uid(row).hex()
        assert (named["offset"], named["length"]) == (offset, length)
    assert sum(piece[3] for piece in pieces) == 4 * batches.seq_len


STEPS, MICROBATCHES, ROWS = 12, 8, 2
CPU = torch.device("cpu")
READ = """
import sys
from pathlib import Path
from tasks.trainer.config import TrainSpec
from tests.tasks.trainer.data.test_batches import chain
spec = TrainSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
for step in range(10**6):
    chain(spec, [1] * (step % 12 + 1))
    print(step, flush=True)
"""


@pytest.fixture
def spec(made: Made, tmp_path: Path) -> TrainSpec:
    return small_spec(made, tmp_path / "run", batch_size=MICROBATCHES * ROWS, microbatch=ROWS)


@pytest.fixture
def remote(spec: TrainSpec, made: Made, s3: S3Server, tmp_path: Path) -> TrainSpec:
    """The same run with its shards and its plan on S3."""
    store = Store(f"s3://sluice/{tmp_path.name}")
    for artifact in (made.shards, made.plan):
        for path in artifact.store.list(artifact.path):
            with store.write(path) as file:
                file.write(artifact.store.read(path))
    assert spec.plan
    there = {"store": store.root}
    return spec.model_copy(
        update={"shards": spec.shards.model_copy(update=there), "plan": spec.plan.model_copy(update=there)}
    )


def steps_of(spec: TrainSpec, ranks: int, first: int, end: int, workers: int) -> Iterator[Batch]:
    """Yields global batches, combined from the loads of all ranks."""
    loaders = [
        Loader(Batches(spec), range(MICROBATCHES)[rank::ranks], STEPS, CPU, workers=workers) for rank in range(ranks)
    ]
    for step in range(first, end):
        parts = {number: part for loader in loaders for number, part in loader.microbatches(step).items()}
        assert sorted(parts) == list(range(MICROBATCHES))
        rows = [[getattr(parts[n], name) for n in range(MICROBATCHES)] for name in ("tokens", "labels", "documents")]
        columns = [torch.stack(row).transpose(0, 1).flatten(0, 1).numpy() for row in rows]
        yield Batch.of(*columns)
    for loader in loaders:
        loader.__exit__()


def chain(spec: TrainSpec, ranks: list[int], workers: int = 1) -> list[str]:
    """Returns the sha256 of all batches up to each step; `ranks` is the number of ranks."""
    digest, sums, first = hashlib.sha256(), [], 0
    for count, group in itertools.groupby(ranks):
        end = first + len(list(group))
        for batch in steps_of(spec, count, first, end, workers):
            for tensor in (batch.tokens, batch.labels, batch.documents, batch.bounds.starts):
                digest.update(tensor.numpy().tobytes())
            sums.append(digest.hexdigest())
        first = end
    return sums


def expected(spec: TrainSpec) -> list[str]:
    """Returns the chain of the global batches as functions of their steps."""
    batches, digest, sums = Batches(spec), hashlib.sha256(), {}
    made = {step: batches.batch(step) for step in reversed(range(STEPS))}
    for step in range(STEPS):
        for tensor in (made[step].tokens, made[step].labels, made[step].documents, made[step].bounds.starts):
            digest.update(tensor.numpy().tobytes())
        sums[step] = digest.hexdigest()
    return list(sums.values())


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_any_number_of_ranks_and_threads_loads_the_same_batches(spec: TrainSpec, workers: int) -> None:
    wanted = expected(spec)
    assert len(set(wanted)) == STEPS
    for ranks in (1, 2, 3, 4, 8):
        assert chain(spec, [ranks] * STEPS, workers) == wanted


def test_a_changing_number_of_ranks_loads_the_same_batches(spec: TrainSpec) -> None:
    assert chain(spec, [4] * 5 + [2] * 3 + [3] * 4) == expected(spec)


def test_shards_and_plan_on_s3_give_the_same_batches_while_three_requests_in_ten_fail(
    spec: TrainSpec, remote: TrainSpec, s3: S3Server
) -> None:
    s3.faults.share = 0.3
    for ranks, workers in ((1, 0), (3, 4)):
        assert chain(remote, [ranks] * STEPS, workers) == expected(spec)
    assert s3.faults.told


@pytest.mark.soak
def test_the_cache_of_a_killed_loader_gives_the_same_batches(
    spec: TrainSpec, remote: TrainSpec, tmp_path: Path
) -> None:
    path = tmp_path / "given.json"
    path.write_text(remote.model_dump_json())
    reading = subprocess.Popen([sys.executable, "-c", READ, str(path)], stdout=subprocess.PIPE)
    assert reading.stdout
    assert reading.stdout.readline()
    reading.kill()
    reading.wait()
    reading.stdout.close()
    assert chain(remote, [4] * 4 + [2] * 4 + [3] * 4, 4) == expected(spec)


def test_only_records_and_the_summary_are_read_before_the_first_step(
    remote: TrainSpec, s3: S3Server, tmp_path: Path
) -> None:
    before = s3.faults.requests
    Batches(remote)
    # Two records and the summary of the plan.
    assert s3.faults.requests - before == 3


def test_a_rank_needs_no_parts_of_the_records_of_shards_and_plan(
    spec: TrainSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Batches(spec)
    monkeypatch.setattr(batches, "open_artifact", lambda given: open_artifact(given).limited_to([]))
    head = Batches(spec)
    assert not head.shards.files()
    assert head.microbatches(1, [3])[3].tokens.equal(whole.microbatches(1, [3])[3].tokens)
    assert (head.slices(1), head.documents(1)) == (whole.slices(1), whole.documents(1))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("fault", ["flipped", "missing", "cut"])
def test_a_damaged_shard_ends_the_run_at_its_step_and_is_named(tmp_path: Path, fault: str) -> None:
    made = tokens_in(tmp_path / "made", corpus(60))
    spec = small_spec(made, tmp_path / "run", batch_size=MICROBATCHES * ROWS, microbatch=ROWS)
    path = Path(made.shards.local("shards/web-train-00001-000.arrow"))
    if fault == "flipped":
        flip(path, path.stat().st_size // 2)
    elif fault == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(InputError, match=r"shards/web-train-00001-000\.arrow") as raised:
        chain(spec, [1] * STEPS, 2)
    assert "\n" not in str(raised.value)
    assert raised.value.remedy


def test_a_truncated_plan_file_is_refused(tmp_path: Path) -> None:
    made = tokens_in(tmp_path / "made", corpus(60))
    spec = small_spec(made, tmp_path / "run", batch_size=MICROBATCHES * ROWS, microbatch=ROWS)
    path = Path(made.plan.local("plan/web-00000-slices.npy"))
    path.write_bytes(path.read_bytes()[:-16])
    with pytest.raises(InputError, match=r"web-00000-slices\.npy"):
        chain(spec, [1] * STEPS)


def test_shards_of_another_tokenizer_are_refused(made: Made, tmp_path: Path) -> None:
    rows = [{**row, "text": row["text"].upper()} for row in corpus(360)]  # the same documents, so the same shards
    others = tokens_in(tmp_path / "others", rows)
    with pytest.raises(InputError, match="was packed from other shards"):
        make_spec(small_config(), Inputs({"shards": others.shards, "plan": made.plan}), tmp_path / "run")
    ours, theirs = small_spec(made, tmp_path / "ours"), small_spec(others, tmp_path / "theirs")
    with pytest.raises(InputError, match="was packed from other shards than"):
        Batches(ours.model_copy(update={"plan": theirs.plan}))


def test_shards_rewritten_during_the_run_are_refused(spec: TrainSpec) -> None:
    stale = spec.shards.model_copy(update={"content": "0" * 64})
    with pytest.raises(InputError, match="was made again since"):
        Batches(spec.model_copy(update={"shards": stale}))
