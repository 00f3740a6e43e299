"""Two nodes train one model: equal bytes, one writer, and no endless wait for another node."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from tasks.core.config import canonical_json
from tasks.core.errors import RecipeError, TransientError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.hooks import Hooks
from tasks.run.runner import join_stage, run_stage
from tasks.run.shell import main
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import FOLDER
from tasks.trainer.launch import gang_agent, launcher
from tasks.trainer.launch.gang import ADDRESS, NODE, NODES, NPROC, PORT, Gang, node_of, nproc_of
from tasks.trainer.launch.gang_agent import decisive_code
from tasks.trainer.launch.launcher import explain, train_local, training_command
from tasks.trainer.logs import METRICS, read_metrics, read_starts
from tasks.trainer.loop import Trainer
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.place import Layout, PreemptionNotice, TrainPlace
from tests.corpora import Made
from tests.s3_server import S3Server
from tests.tasks.trainer.gangs import contents, ended, free_port, gang, pod, recipe_of, store_with, trained_in
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import WEIGHTS, digests, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE
from tests.waiting import until

pytestmark = pytest.mark.real_time

CONFIG = small_config(steps=600, checkpoint_every=20)
SHORT = small_config()
ENDLESS = {"steps": 100_000, "checkpoint_every": 100_000}


@pytest.fixture(scope="module")
def whole(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the result of `CONFIG` on one node without faults."""
    store = store_with(made, tmp_path_factory.mktemp("whole") / "store", WEIGHTS)
    with training_in_process():
        run_stage(recipe_of(store, CONFIG), "train")
    return store


@pytest.fixture(scope="module")
def done(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the result of `SHORT` on one node."""
    store = store_with(made, tmp_path_factory.mktemp("done") / "store", WEIGHTS)
    with training_in_process():
        run_stage(recipe_of(store, SHORT), "train")
    return store


@pytest.fixture
def store(made: Made, tmp_path: Path) -> Path:
    return store_with(made, tmp_path / "store", WEIGHTS)


def steps_done(run: Path) -> int:
    return len(read_metrics(run / METRICS))


STARTED: "list[subprocess.Popen[bytes]]" = []


@pytest.fixture(autouse=True)
def no_agent_outlives_its_test() -> Iterator[None]:
    """Kills what a failed test leaves: an agent of an endless run, and its ranks."""
    yield
    for agent in STARTED:
        if agent.poll() is None:
            for process in (*psutil.Process(agent.pid).children(), agent):
                process.kill()
            agent.wait()
    STARTED.clear()


def agents(
    made: Made,
    folder: Path,
    *settings: dict[str, object],
    layout: Layout | None = None,
    preemption: PreemptionNotice | None = None,
) -> "list[subprocess.Popen[bytes]]":
    """Starts the agent of every node, with one rank; node n writes to `folder`/n, or with a layout to its own disk."""
    place = {NODES: str(len(settings)), ADDRESS: "localhost", PORT: str(free_port()), "SLUICE_PEER_TIMEOUT": "3"}
    started = []
    for node, mine in enumerate(settings):
        spec = small_spec(made, folder / str(node) / ("run" if layout else ""), **mine)
        spec = spec.model_copy(update={"place": TrainPlace(layout=layout, preemption=preemption)})
        path = Path(spec.out) / "given.json"
        path.write_text(canonical_json(spec))
        environment = {**os.environ, **place, NODE: str(node)}
        started.append(subprocess.Popen(training_command(str(path), 1), stdin=subprocess.DEVNULL, env=environment))
    STARTED.extend(started)
    return started


def codes(processes: "list[subprocess.Popen[bytes]]") -> list[int]:
    return [process.wait(300) for process in processes]


@pytest.mark.soak
@pytest.mark.parametrize("layout", [None, {"shard": 2}], ids=str)
def test_a_gang_that_lost_node_0_resumes_from_the_store_with_the_same_bytes(
    whole: Path, made: Made, s3: S3Server, tmp_path: Path, layout: dict[str, int] | None
) -> None:
    store = store_with(made, f"s3://sluice/{tmp_path.name}", WEIGHTS)
    recipe = recipe_of(store, CONFIG).override({"place.train.layout": layout})
    pods = gang(recipe, tmp_path)
    resume = f"test/checkpoint/dev/{FOLDER}"
    # The record of a checkpoint: files without it belong to an unfinished upload and are ignored.
    record = re.compile(rf"{resume}/step-(\d{{8}})\.json")
    until(lambda: any(int(match[1]) > 40 for match in map(record.fullmatch, Store(store).list(resume)) if match), 300)
    pods[0].kill()
    code, said = ended(pods)[1]
    assert code == 1
    assert "lost node 0 of the gang" in said.splitlines()[-1]
    (first, said), (other, told) = ended(gang(recipe, tmp_path))
    assert (first, other) == (0, 0), said + told
    fetched = re.search(r"step (\d+) fetched from the store: this machine has step 0", said)
    assert fetched is not None
    assert int(fetched[1]) >= 40
    assert f"[rank 0] INFO resumed at step {fetched[1]} of 600" in said
    assert f"[rank 1] INFO resumed at step {fetched[1]} of 600" in told
    found, expected = trained_in(store), trained_in(whole)
    assert found is not None
    assert expected is not None
    if layout:  # equal to one rank up to rounding
        assert found.files() == expected.files()
    else:
        assert contents(found) == contents(expected)


def test_a_vanished_node_ends_the_others_with_a_restart_exit_code(made: Made, tmp_path: Path) -> None:
    nodes = agents(made, tmp_path, ENDLESS, ENDLESS)
    until(lambda: steps_done(tmp_path / "0") > 3, 300)
    for process in (nodes[1], *psutil.Process(nodes[1].pid).children()):
        process.send_signal(signal.SIGKILL)
    assert codes(nodes[:1]) == [1]
    assert "lost node 1 of the gang" in str(explain(1, tmp_path / "0"))


def test_ranks_that_wait_for_others_are_killed_soon_after_a_node_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_agent, "WIND_DOWN_S", 1e9)
    monkeypatch.setattr(gang_agent, "LOST_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    waits = [sys.executable, "-c", "import time; time.sleep(20)"]
    monkeypatch.setattr(gang_agent._Node, "_start", lambda self, local, attempt: subprocess.Popen(waits))
    gone: Any = SimpleNamespace(
        gang=Gang(3, 0, "localhost", 1),
        peers=[1, 2],
        lost=[2],
        results={},
        begin=lambda attempt: None,
        post=lambda result: None,
    )
    node = gang_agent._Node(tmp_path / "spec.json", tmp_path, 2, gone)
    assert node.run(0) == 1
    assert [rank.returncode for rank in node.ranks] == [-signal.SIGKILL] * 2
    assert "lost node 2 of the gang" in str(explain(1, tmp_path))


def test_a_node_of_a_finished_run_exits_at_once(
    done: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {NODES: "2", NODE: "1", ADDRESS: "no-such-host.invalid"}.items():
        monkeypatch.setenv(name, value)
    before = sorted(done.rglob("*"))
    assert main(["train", "--recipe", recipe_of(done, SHORT).text]) == 0
    assert "there is nothing to join" in caplog.text
    assert sorted(done.rglob("*")) == before


def test_a_stage_that_runs_on_one_node_is_left_to_node_0(
    done: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {NODES: "2", NODE: "1", ADDRESS: "no-such-host.invalid"}.items():
        monkeypatch.setenv(name, value)
    assert main(["evaluate", "--recipe", recipe_of(done, SHORT).text]) == 0
    assert "the stage evaluate runs on node 0 alone" in caplog.text


def test_a_joining_node_gets_layout_locations_and_preemption_notice_of_the_place(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def join(config: object, inputs: object, output: Output) -> None:
        place = TrainPlace.of(output.place)
        seen.append((place.layout, place.checkpoints.keep_every, place.preemption))

    monkeypatch.setattr("tasks.stages.train.stage.HOOKS", Hooks(join=join))
    place = {"layout": {"shard": 2}, "checkpoints.keep_every": 50, "preemption": {"provider": "aws"}}
    changes = {f"place.train.{name}": value for name, value in place.items()}
    join_stage(recipe_of(store, CONFIG).override(changes), "train")
    assert seen == [(Layout(shard=2), 50, PreemptionNotice(provider="aws"))]


def test_a_run_without_a_gang_inherits_no_variable_of_one(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {NODES: "2", NODE: "0", ADDRESS: "no-such-host.invalid"}.items():
        monkeypatch.setenv(name, value)
    tell = "import json, os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-c", tell, str(tmp_path / "told")]
    monkeypatch.setattr(launcher, "training_command", lambda path, nproc: command)
    train_local(small_spec(made, tmp_path), lambda step, values: None)
    told = json.loads((tmp_path / "told").read_text())
    assert told[launcher.PARENT_PIPE] == "stdin"
    assert not told.keys() & {NODES, NODE, ADDRESS, PORT}


@pytest.mark.soak
def test_a_canary_in_a_gang_trains_alone(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {NODES: "2", NODE: "0", ADDRESS: "no-such-host.invalid"}.items():
        monkeypatch.setenv(name, value)
    spec = small_spec(made, tmp_path, steps=3, milestones=1)
    train_local(spec, lambda step, values: None)
    assert steps_done(tmp_path) == 3


@pytest.mark.soak
def test_all_ranks_of_a_gang_resume_when_one_is_killed(made: Made, tmp_path: Path) -> None:
    settings = {"steps": 80, "checkpoint_every": 20}
    nodes = agents(made, tmp_path, settings, settings)
    until(lambda: steps_done(tmp_path / "0") > 30, 300)
    (rank,) = psutil.Process(nodes[1].pid).children()
    rank.send_signal(signal.SIGKILL)
    assert codes(nodes) == [0, 0]
    alone = small_spec(made, tmp_path / "alone", **settings)
    Trainer(alone, ALONE).train()
    assert digests(tmp_path / "0") == digests(tmp_path / "alone")
    assert digests(tmp_path / "1") == {}


@pytest.mark.soak
@pytest.mark.parametrize(("nodes", "layout"), [(2, Layout(shard=2)), (4, Layout(shard=2, pipeline=2))], ids=str)
def test_nodes_that_share_a_replica_resume_with_the_result_of_one_rank_when_one_is_killed(
    made: Made, tmp_path: Path, nodes: int, layout: Layout
) -> None:
    model = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False)
    settings = {"steps": 30, "checkpoint_every": 5, "model": model, "microbatch": 1}
    started = agents(made, tmp_path, *[settings] * nodes, layout=layout)
    until(lambda: len(checkpoint.steps_at(tmp_path / "1" / "run" / "checkpoints")) > 1, 300)
    for process in (*psutil.Process(started[1].pid).children(), started[1]):
        process.send_signal(signal.SIGKILL)
    assert codes(started) == [1, -9, *[1] * (nodes - 2)]
    assert codes(agents(made, tmp_path, *[settings] * nodes, layout=layout)) == [0] * nodes
    assert read_starts(tmp_path / "0" / "run")[-1]["step"] > 0
    Trainer(small_spec(made, tmp_path / "alone", **settings), ALONE).train()
    found, expected = (
        [line["loss"] for line in read_metrics(run / METRICS)] for run in (tmp_path / "0" / "run", tmp_path / "alone")
    )
    np.testing.assert_allclose(found[:10], expected[:10], atol=1e-5, rtol=0)
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)


@pytest.mark.soak
def test_a_node_that_gets_sigterm_stops_the_gang_with_a_checkpoint(made: Made, tmp_path: Path) -> None:
    nodes = agents(made, tmp_path, ENDLESS, ENDLESS)
    until(lambda: steps_done(tmp_path / "0") > 3, 300)
    nodes[1].terminate()
    assert codes(nodes) == [143, 143]
    assert checkpoint.steps_at(tmp_path / "0" / "checkpoints") == [steps_done(tmp_path / "0")]


@pytest.mark.soak
def test_nodes_with_different_settings_are_refused_on_both_sides_with_one_cause(made: Made, tmp_path: Path) -> None:
    assert codes(agents(made, tmp_path, ENDLESS, {**ENDLESS, "init_seed": 1})) == [2, 2]
    for node in ("0", "1"):
        assert "rank 1 has other settings or inputs than rank 0" in str(explain(2, tmp_path / node))


def test_a_node_waiting_for_others_stops_at_once_on_sigterm(store: Path) -> None:
    place = {NODES: "2", NODE: "1", ADDRESS: "no-such-host.invalid", PORT: str(free_port())}
    waiting = pod(recipe_of(store, CONFIG), **place)
    until(lambda: any("tasks.trainer.launch.agent" in command for command in commands_below(waiting)))
    waiting.terminate()
    assert ended([waiting])[0][0] == 143


def commands_below(one: "subprocess.Popen[str]") -> list[list[str]]:
    return [process.cmdline() for process in psutil.Process(one.pid).children(recursive=True)]


def test_a_run_too_small_for_its_nodes_is_refused(made: Made, tmp_path: Path) -> None:
    three = Gang(3, 0, "127.0.0.1", 1)
    with pytest.raises(RecipeError, match="3 nodes cannot share 2 microbatches"):
        train_local(small_spec(made, tmp_path), lambda step, values: None, gang=three)


def test_a_pod_reads_its_rank_from_the_torchrun_variables() -> None:
    place = {NODES: "4", NODE: "3", ADDRESS: "run-node-0-0.run", PORT: "29501"}
    assert Gang.from_environment(place) == Gang(4, 3, "run-node-0-0.run", 29501)
    assert Gang.from_environment(place).environment() == place
    assert node_of(place) == 3
    assert node_of({NODES: "1:1", NODE: "0"}) == node_of({}) == 0


def test_a_pod_reads_its_number_of_ranks_from_the_torchrun_variable() -> None:
    assert (nproc_of({NPROC: "8"}), nproc_of({})) == (8, None)
    for wrong in ("auto", "0"):
        with pytest.raises(RecipeError, match=f'{NPROC} is "{wrong}"'):
            nproc_of({NPROC: wrong})


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ({NODES: "2", NODE: "0"}, f"{ADDRESS} is not set"),
        ({NODES: "two"}, "must be numbers"),
        ({NODES: "2", NODE: "2", ADDRESS: "a"}, "no node 2 in a gang of 2"),
        ({NODES: "1:2", NODE: "0", ADDRESS: "a"}, "in a gang of 1:2"),
    ],
)
def test_an_invalid_rank_configuration_is_refused(place: dict[str, str], cause: str) -> None:
    with pytest.raises(RecipeError, match=cause):
        Gang.from_environment(place)


def test_unresolved_names_and_nodes_that_do_not_listen_yet_are_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, asked = socket.getaddrinfo, []

    def young(*arguments: object, **more: object) -> object:
        asked.append(arguments)
        if len(asked) < 2:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if len(asked) == 4:
            later.listen()
        return real(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", young)
    with socket.socket() as later:
        later.bind(("127.0.0.1", 0))
        there = Gang(2, 1, "localhost", later.getsockname()[1])
        assert there.reach(20) == "127.0.0.1"


def test_a_node_0_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Gang(2, 1, "127.0.0.1", free_port())
    with pytest.raises(TransientError, match=rf"did not answer at 127\.0\.0\.1:{nowhere.port}.*refused"):
        nowhere.reach(0)


@pytest.mark.parametrize("node", [0, 1])
def test_ranks_use_the_shared_network_of_the_nodes(node: int) -> None:
    assert Gang(2, node, "127.0.0.1", 1).interface() in psutil.net_if_addrs()
    assert Gang(2, node, "no-such-host.invalid", 1).interface() is None


def test_a_permanent_error_outranks_its_consequences_on_other_nodes() -> None:
    assert decisive_code([1, 2]) == 2
    assert decisive_code([137, 1]) == 137
    assert decisive_code([134, 143, 0]) == 143
    assert decisive_code([0, 0]) == 0
