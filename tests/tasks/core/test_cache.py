"""Local copies of remote files: fetched once, complete, and within the size limit."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.cache import cached_copy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    return tmp_path


def writes(content: bytes) -> Callable[[str], None]:
    return lambda path: Path(path).write_bytes(content) and None


def test_a_file_is_fetched_once(folder: Path) -> None:
    first = cached_copy("key", 3, writes(b"one"))
    assert cached_copy("key", 3, writes(b"two")) == first
    assert Path(first).read_bytes() == b"one"


def test_a_copy_that_was_cut_short_is_not_kept(folder: Path) -> None:
    with pytest.raises(OSError, match="2 of 3 bytes arrived"):
        cached_copy("key", 3, writes(b"on"))
    assert list(folder.iterdir()) == []


def test_the_least_recently_used_copy_is_evicted_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, key in ((3, "old"), (2, "older but used"), (4, "oldest")):
        os.utime(cached_copy(key, 400, writes(bytes(400))), (time.time() - age * 86_400,) * 2)
    monkeypatch.setenv("SLUICE_CACHE_GB", "0.000001")
    cached_copy("older but used", 400, writes(b""))
    cached_copy("new", 400, writes(bytes(400)))
    assert sorted(path.name for path in folder.iterdir()) == ["new", "older but used"]


def test_a_copy_in_use_is_not_evicted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE_GB", "0.000001")
    cached_copy("one", 900, writes(bytes(900)))
    cached_copy("two", 900, writes(bytes(900)))
    assert {path.name for path in folder.iterdir()} == {"one", "two"}
