"""Which ranks missed which collective, from what torch's flight recorder writes when a collective times out.

Every rank keeps its last 2,000 collectives in memory (`FlightRecorder` of torch 2.13). If one times out, NCCL's
watchdog writes those of all ranks; with gloo, a rank writes its own when it ends with an error. The files are
`flight/<start>-rank-<n>` in the run's folder. They are pickles of plain values, and are read as nothing else.
"""

import contextlib
import io
import json
import logging
import os
import pickle
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FOLDER = "flight"
MOST_BYTES = 256 * 2**20
"""Size of a record above which it is not read."""
MOST_BYTES_SENT = 8 * 2**20
"""Size of a record above which it is not sent to the tracker."""
_NAME = re.compile(r"(.*)-rank-(\d+)")
_FILE = "TORCH_FR_DUMP_TEMP_FILE"
_SENTENCES = 3


def enable(run: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets this rank keep records for the folder of a run; torch reads the variables when it connects the ranks."""
    if environment.get("WORLD_SIZE", "1") == "1":
        return
    (run / FOLDER).mkdir(exist_ok=True)
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", environment.get("SLUICE_ATTEMPT", "0"))
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    environment[_FILE] = str(run / FOLDER / f"{int(restart):03d}-rank-")


def write_own(rank: int) -> None:
    """Writes the record of this rank, unless NCCL has or there is none; called when it ends with an error."""
    import torch.distributed as dist

    prefix = os.environ.get(_FILE)
    if not prefix or not dist.is_initialized() or dist.get_backend() != "gloo":
        return
    from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

    with contextlib.suppress(OSError, RuntimeError):  # the error itself is what matters
        path = Path(f"{prefix}{rank}")
        aside = path.with_name(f".{path.name}")
        aside.write_bytes(_dump_fr_trace())
        aside.rename(path)


def records(run: Path) -> dict[int, Path]:
    """Returns the records of the last start in a run's folder, by rank; {} if there is none."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted((run / FOLDER).glob("*-rank-*")):
        if match := _NAME.fullmatch(path.name):
            found.setdefault(match[1], {})[int(match[2])] = path
    return dict(sorted(found[max(found)].items())) if found else {}


def contents(run: Path) -> dict[str, bytes]:
    """Returns the records of the last start by their path in a run's folder, without large ones."""
    paths = [path for path in records(run).values() if path.stat().st_size <= MOST_BYTES_SENT]
    return {f"{FOLDER}/{path.name}": path.read_bytes() for path in paths}


def clear(run: Path) -> None:
    """Removes the records of an earlier attempt, which has reported them."""
    for path in (run / FOLDER).glob("*"):
        path.unlink(missing_ok=True)


def explained(run: Path) -> str:
    """Returns in a sentence or three which ranks missed which collective, and where the records are; "" without any."""
    paths, dumps = records(run), {}
    for rank, path in paths.items():
        try:
            dumps[rank] = read(path)
        except (OSError, ValueError, pickle.UnpicklingError, EOFError) as error:
            log.warning("%s is no record of collectives: %s", path, error)
    if not dumps:
        return ""
    found = list(missed(dumps))[:_SENTENCES]
    text = ". ".join(found) or "every rank joined the collectives that any of them joined"
    return f"{text}. The last collectives of ranks {_numbers(dumps)} are in {run / FOLDER}"


class _PlainValues(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts; a record has nothing else, and a pickle could call any function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a record.

    Raises:
        OSError, ValueError, pickle.UnpicklingError, EOFError: it is none, or too large.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    dump = _PlainValues(io.BytesIO(path.read_bytes())).load()
    if not isinstance(dump, dict) or "entries" not in dump:
        raise ValueError("it has no entries")
    return dump


@dataclass(frozen=True)
class _Group:
    """A process group, as its ranks have it."""

    name: str
    ranks: tuple[int, ...]
    last: Mapping[int, Mapping[str, Any]]
    """The last collective of each rank of which there is a record; {} if it had none."""


def missed(dumps: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yields a sentence, without a final period, per group in which ranks are not in the same collective.

    Args:
        dumps: the content of the records by rank.
    """
    for group in _groups(dumps):
        numbers = {rank: int(entry.get("collective_seq_id", 0)) for rank, entry in group.last.items()}
        newest = max(numbers.values(), default=0)
        waiting = [rank for rank, number in numbers.items() if number == newest]
        entry = group.last[waiting[0]] if waiting else {}
        if not entry or all(group.last[rank].get("state") == "completed" for rank in waiting):
            continue
        what = f"{_operation(entry)} number {newest:,} of the group {group.name}"
        behind = [rank for rank in numbers if numbers[rank] < newest]
        silent = [rank for rank in group.ranks if rank not in numbers]
        if behind:
            last = max(numbers[rank] for rank in behind)
            yield f"ranks {_numbers(behind)} did not join {what}, in which ranks {_numbers(waiting)} wait; " + (
                f"their last one was number {last:,}" if last else "they joined none of it"
            )
        if silent:
            where = "left no record on this machine"
            yield f"ranks {_numbers(silent)} {where}, and ranks {_numbers(waiting)} wait in {what}"
        kinds = {_operation(group.last[rank]): rank for rank in waiting}
        if len(kinds) > 1:
            parts = " and ".join(f"rank {rank} {kind}" for kind, rank in kinds.items())
            yield f"number {newest:,} of the group {group.name} is not the same on all ranks: {parts}"
        elif not behind and not silent and any(group.last[rank].get("state") == "started" for rank in waiting):
            yield f"all ranks joined {what}, which did not end: a link or a device stands still"


def _groups(dumps: Mapping[int, Mapping[str, Any]]) -> list[_Group]:
    """Returns the groups of all ranks."""
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    last: dict[tuple[str, tuple[int, ...]], dict[int, Mapping[str, Any]]] = {}
    for rank, dump in dumps.items():
        newest: dict[str, Mapping[str, Any]] = {}
        for entry in dump["entries"]:
            if not entry.get("is_p2p"):
                name = entry["process_group"][0]
                if entry["collective_seq_id"] >= newest.get(name, entry)["collective_seq_id"]:
                    newest[name] = entry
        config = {(one["name"] or "0"): one for one in dump.get("pg_config", {}).values()}
        for name, one in config.items():
            key = name, tuple(json.loads(one["ranks"]))
            entry = newest.get(name, {})
            last.setdefault(key, {})[rank] = entry
            names[key] = (entry or one).get("process_group", ("", one.get("desc", "")))[1] or names.get(key, "") or name
    return [_Group(names[key], key[1] or tuple(sorted(last[key])), last[key]) for key in last]


def _operation(entry: Mapping[str, Any]) -> str:
    """Returns kind and sizes of a collective.

    >>> _operation({"profiling_name": "nccl:all_reduce", "input_sizes": [[4, 2]], "input_dtypes": ["Float"]})
    'all_reduce of [4, 2] Float'
    """
    kind = str(entry.get("profiling_name", "a collective")).partition(":")[2] or "a collective"
    sizes, types = entry.get("input_sizes", []), entry.get("input_dtypes", [])
    return f"{kind} of {sizes[0]} {types[0]}" if sizes and types else kind


def _numbers(ranks: Sequence[int] | Mapping[int, Any]) -> str:
    """Returns ranks as text, of many the first ones.

    >>> _numbers([0, 3]), _numbers(range(20))
    ('0, 3', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    shown = ", ".join(map(str, list(ranks)[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
