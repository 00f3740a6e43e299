"""Training in the process of the tests: subprocesses of stages import torch again, for seconds. Not a test module."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.core.config import canonical_json
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import failure, supervised
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.launcher import OnMetrics
from tasks.trainer.logs import METRICS, MetricsTail


def train_here(
    spec: TrainSpec,
    on_metrics: OnMetrics,
    gang: Gang | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Trains like `train_local`, with one rank in this process; passes on the metrics at the end."""
    import torch  # here: most tests with the fixture below do not train

    from tasks.trainer.loop import Trainer
    from tasks.trainer.parallel.ranks import Ranks

    assert gang is None
    out = Path(spec.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "spec.json").write_text(canonical_json(spec) + "\n")
    tail = MetricsTail(out / METRICS)
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    check()
    try:
        torch.set_num_threads(spec.run.threads)
        gc.freeze()  # the trainer collects garbage when it starts; the objects of the tests are many
        Trainer(spec, Ranks(0, 1, 0)).train()
    except Exception as error:
        raise failure.record(out, 0, error).error() from error
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
        signal.signal(signal.SIGTERM, handler)
        for values in tail.new_lines():
            on_metrics(int(values["step"]), {k: v for k, v in values.items() if k != "step" and v is not None})


@contextmanager
def training_in_process() -> Iterator[None]:
    """Within the block, stages train in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervised, "train_local", train_here)
        yield


@pytest.fixture(scope="module", autouse=True)
def in_process() -> Iterator[None]:
    """In each module of a folder with this fixture, stages train in the process of the tests."""
    with training_in_process():
        yield
