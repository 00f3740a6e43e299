"""Arrays can be read in several threads while the garbage collector runs finalizers."""

import gc
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tasks.core.open_files import load_array


class Cycle:
    """Garbage with a Python finalizer, during which threads can switch."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


@pytest.fixture
def restless() -> Iterator[None]:
    """Collects garbage and switches threads as often as possible."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_headers_are_read_in_threads(restless: None) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3, [("shard", "<u4"), ("row", "<u4")]))
    data, failed = buffer.getvalue(), list[Any]()

    def read(depth: int) -> None:
        if depth:
            return read(depth - 1)
        try:
            for _ in range(300):
                Cycle()
                load_array(io.BytesIO(data))
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(7 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
