"""On a GPU the state is copied on a stream of its own, after the update; on a CPU there is no stream."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tasks.trainer.checkpoints.saving import CopyStream


class Stream:
    """A CUDA stream that only logs what is called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.device = name, log, torch.device("cuda", 0)

    def record_event(self) -> str:
        self.log.append(f"mark {self.name}")
        return f"end of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def synchronize(self) -> None:
        self.log.append(f"thread waits for {self.name}")


def test_on_a_gpu_the_copy_waits_for_the_update_and_for_nothing_that_is_queued_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield
        log.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("loop", log))
    monkeypatch.setattr(torch.cuda, "stream", on)
    stream = CopyStream(torch.device("cuda", 0))
    ready = stream.mark()
    assert log == ["mark loop"]
    assert stream.run(ready, lambda: log.append("copy") or "copied") == "copied"
    order = ["copies waits for end of loop", "on copies", "copy", "off copies", "thread waits for copies"]
    assert log[1:] == order


def test_on_a_cpu_the_copy_is_a_plain_call() -> None:
    stream = CopyStream(torch.device("cpu"))
    assert stream.mark() is None
    assert stream.run(stream.mark(), lambda: "copied") == "copied"
