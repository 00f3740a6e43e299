"""The loader: every step has the same sequences, whoever reads it with how many threads from where, or an error."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batch, Batches, Loader
from tasks.trainer.spec import make_spec
from tests.corpora import Made, corpus, tokens_in
from tests.s3_server import S3Server
from tests.tasks.trainer.small_run import small_config, small_spec

STEPS, MICROBATCHES, ROWS = 12, 8, 2
CPU = torch.device("cpu")
READ = """
import sys
from pathlib import Path
from tasks.trainer.config import TrainSpec
from tests.tasks.trainer.data.test_loader import chain
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
    """The same run with its shards on S3."""
    store = Store(f"s3://sluice/{tmp_path.name}")
    for path in made.shards.store.list(made.shards.path):
        with store.write(path) as file:
            file.write(made.shards.store.read(path))
    return spec.model_copy(update={"shards": spec.shards.model_copy(update={"store": store.root})})


def steps_of(spec: TrainSpec, ranks: int, first: int, end: int, workers: int) -> Iterator[Batch]:
    """Yields global batches, put together from what each of some ranks loads."""
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
    """Returns the sha256 of all batches up to each step; `ranks` says how many ranks load it."""
    digest, sums, first = hashlib.sha256(), [], 0
    for count, group in itertools.groupby(ranks):
        end = first + len(list(group))
        for batch in steps_of(spec, count, first, end, workers):
            for tensor in (batch.tokens, batch.labels, batch.documents, batch.cu_seqlens):
                digest.update(tensor.numpy().tobytes())
            sums.append(digest.hexdigest())
        first = end
    return sums


def expected(spec: TrainSpec) -> list[str]:
    """Returns the chain of the global batches as functions of their steps."""
    batches, digest, sums = Batches(spec), hashlib.sha256(), {}
    made = {step: batches.batch(step) for step in reversed(range(STEPS))}
    for step in range(STEPS):
        for tensor in (made[step].tokens, made[step].labels, made[step].documents, made[step].cu_seqlens):
            digest.update(tensor.numpy().tobytes())
        sums[step] = digest.hexdigest()
    return list(sums.values())


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_any_number_of_ranks_and_threads_loads_the_same_batches(spec: TrainSpec, workers: int) -> None:
    wanted = expected(spec)
    assert len(set(wanted)) == STEPS
    for ranks in (1, 2, 3, 4, 8):
        assert chain(spec, [ranks] * STEPS, workers) == wanted


def test_ranks_that_come_and_go_load_the_same_batches(spec: TrainSpec) -> None:
    assert chain(spec, [4] * 5 + [2] * 3 + [3] * 4) == expected(spec)


def test_shards_on_s3_give_the_same_batches_while_three_requests_in_ten_fail(
    spec: TrainSpec, remote: TrainSpec, s3: S3Server
) -> None:
    s3.faults.share = 0.3
    for ranks, workers in ((1, 0), (3, 4)):
        assert chain(remote, [ranks] * STEPS, workers) == expected(spec)
    assert s3.faults.told


@pytest.mark.soak
def test_a_loader_killed_in_the_middle_leaves_a_cache_that_gives_the_same_batches(
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


def test_nothing_is_read_before_the_first_step_but_a_record_and_what_tells_the_format(
    remote: TrainSpec, s3: S3Server, tmp_path: Path
) -> None:
    before = s3.faults.requests
    Batches(remote)
    assert s3.faults.requests - before == 3  # the record, the checksums of one shard, its only block


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("fault", ["flipped", "missing", "cut"])
def test_a_broken_shard_ends_the_run_at_its_step_with_its_name(tmp_path: Path, fault: str) -> None:
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


def test_a_plan_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match="packed from shards of another tokenizer"):
        Batches(ours.model_copy(update={"plan": theirs.plan}))


def test_shards_that_were_made_again_during_the_run_are_refused(spec: TrainSpec) -> None:
    stale = spec.shards.model_copy(update={"content": "0" * 64})
    with pytest.raises(InputError, match="was made again since"):
        Batches(spec.model_copy(update={"shards": stale}))
