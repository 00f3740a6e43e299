"""Token shards as WebDataset: a tar with two members per document, `<document id>.npy` and `<document id>.json`."""

import io
import json
import tarfile
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def write_tar(file: BinaryIO, samples: Iterable[tuple[str, NDArray[Any], dict[str, Any]]]) -> None:
    """Writes a tar; equal samples give equal bytes.

    Args:
        file: the file.
        samples: (key, tokens of shape (n,), description) of each document. A key has no dot: the name ends there.
    """
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for key, tokens, about in samples:
            array = io.BytesIO()
            np.lib.format.write_array(array, tokens, allow_pickle=False)
            _add(tar, f"{key}.npy", array.getvalue())
            _add(tar, f"{key}.json", json.dumps(about, sort_keys=True, ensure_ascii=False).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # time 0, user 0: nothing of this machine
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
