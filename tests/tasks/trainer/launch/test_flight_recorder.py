"""Which ranks missed which collective: from records of real ranks over gloo, and of NCCL's, made by hand."""

import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tasks.trainer.launch import flight_recorder
from tasks.trainer.launch.flight_recorder import explained, missed
from tasks.trainer.launch.launcher import explain
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port


def rank(number: int, port: int, run: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number), "WORLD_SIZE": "2"}
    flight_recorder.enable(run)
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    for _ in range(3 - number):
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError:
            break
    time.sleep(2 * number)  # the rank that does not join is still there
    flight_recorder.write_own(number)
    os._exit(0)


def test_ranks_over_gloo_record_who_did_not_join(tmp_path: Path) -> None:
    port = free_port()
    assert forked(rank, [(number, port, tmp_path) for number in range(2)]) == [0, 0]
    text = explained(tmp_path)
    what = "all_reduce of [4] Float number 3 of the group default_pg"
    assert text.startswith(f"ranks 1 did not join {what}, in which ranks 0 wait; their last one was number 2. ")
    assert text.endswith(f"The last collectives of ranks 0, 1 are in {tmp_path / 'flight'}")
    error = str(explain(1, tmp_path))
    assert f"Ranks 1 did not join {what}" in error, "it is the cause of the run's failure"
    flight_recorder.clear(tmp_path)
    assert explained(tmp_path) == ""


def entry(number: int, state: str, kind: str = "all_reduce", group: str = "0", size: int = 8) -> dict[str, Any]:
    sizes = {"input_sizes": [[size]], "input_dtypes": ["BFloat16"]}
    return {"process_group": (group, "default_pg" if group == "0" else "mesh_shard"), "collective_seq_id": number,
            "profiling_name": f"nccl:{kind}", "state": state, "is_p2p": False, **sizes}  # fmt: skip


def dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2]", group: str = "0") -> dict[str, Any]:
    config = {"name": group, "desc": entries[0]["process_group"][1], "ranks": ranks}
    return {"version": "2.10", "pg_config": {group: config}, "entries": list(entries)}


def test_a_rank_without_a_record_is_named() -> None:
    (text,) = missed({rank: dump(entry(6, "completed"), entry(7, "started")) for rank in (0, 1)})
    assert (
        text
        == "ranks 2 left no record on this machine, and ranks 0, 1 wait in all_reduce of [8] BFloat16 number 7 of the "
        "group default_pg"
    )


def test_different_collectives_under_one_number_are_named() -> None:
    dumps = {0: dump(entry(7, "started")), 1: dump(entry(7, "started", "all_gather")), 2: dump(entry(7, "started"))}
    (text,) = missed(dumps)
    assert "number 7 of the group default_pg is not the same on all ranks" in text
    assert "rank 1 all_gather of [8] BFloat16" in text


def test_groups_that_ended_their_last_collective_are_not_named() -> None:
    assert list(missed({rank: dump(entry(7, "completed")) for rank in range(3)})) == []
    running = {rank: dump(entry(7, "started")) for rank in range(3)}
    assert [text.partition(",")[0] for text in missed(running)] == [
        "all ranks joined all_reduce of [8] BFloat16 number 7 of the group default_pg"
    ]


class Call:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("called",)


def test_a_record_that_calls_a_function_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "flight" / "000-rank-0"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({"entries": [Call()]}))
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.mkdir"):
        flight_recorder.read(path)
    assert explained(tmp_path) == ""
    assert not Path("called").exists()
