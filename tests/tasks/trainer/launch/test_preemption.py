"""The preemption notice of a spot machine acts like SIGTERM; other answers of a metadata server are ignored."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.config import canonical_json
from tasks.core.errors import StoppedError
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.launch.launcher import training_command
from tasks.trainer.launch.preemption import Aws, Gcp, UnexpectedResponse, watch
from tasks.trainer.logs import FAULTS, METRICS, last_step, read_metrics
from tasks.trainer.place import PreemptionNotice, TrainPlace
from tests.corpora import Made
from tests.tasks.trainer.checkpoints.test_recovery import Fate, train
from tests.tasks.trainer.launch.metadata_server import MetadataServer, metadata_server
from tests.tasks.trainer.launch.test_gang import ENDLESS, agents, codes
from tests.tasks.trainer.small_run import small_config, small_spec
from tests.waiting import until

pytestmark = pytest.mark.real_time


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with metadata_server() as server:
        yield server


def notice(server: MetadataServer, provider: str) -> PreemptionNotice:
    return PreemptionNotice(provider=provider, url=server.url, poll_s=0.1)  # type: ignore[arg-type]


def test_a_preempted_stage_saves_and_exits_like_after_sigterm(
    made: Made, server: MetadataServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, config = Store(str(tmp_path)), small_config(steps=2000, checkpoint_every=2000)

    def preempt() -> None:
        server.preempted = True

    with pytest.raises(StoppedError):
        train(made, store, config, Fate(5, preempt), TrainPlace(preemption=notice(server, "aws")))
    (run,) = tmp_path.glob("**/epoch-000001")
    (step,) = checkpoint.steps_at(run / "checkpoints")
    assert 5 < step < 2000
    assert checkpoint.verify(run / "checkpoints" / checkpoint.name_of(step))["step"] == len(read_metrics(run / METRICS))
    (fault,) = read_metrics(run / FAULTS)
    assert (fault["kind"], fault["what"]) == ("preemption", "EC2 will terminate this machine at 2026-11-23T10:12:00Z")
    assert 5 <= fault["step"] <= step
    assert "alert: preemption at step" in caplog.text
    tokens = [request for request in server.requests if request[0] == "PUT"]
    assert len(tokens) == 1, "of the six hours of a token"


@pytest.mark.soak
def test_a_preempted_agent_of_two_ranks_exits_with_143(made: Made, server: MetadataServer, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, **ENDLESS).model_copy(
        update={"place": TrainPlace(preemption=notice(server, "gcp"))}
    )
    path = tmp_path / "given.json"
    path.write_text(canonical_json(spec))
    # A proxy that does not exist: requests are direct.
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
    agent = subprocess.Popen(training_command(str(path), 2), stdin=subprocess.DEVNULL, env=environment)
    until(lambda: last_step(tmp_path / METRICS) > 3)
    assert agent.poll() is None
    server.preempted = True
    assert agent.wait(60) == 143
    (step,) = checkpoint.steps_at(tmp_path / "checkpoints")
    assert step == len(read_metrics(tmp_path / METRICS))
    (fault,) = read_metrics(tmp_path / FAULTS)
    assert fault["what"] == "Compute Engine has begun to preempt this machine"


@pytest.mark.soak
def test_a_preempted_node_stops_the_gang_with_a_checkpoint(made: Made, server: MetadataServer, tmp_path: Path) -> None:
    nodes = agents(made, tmp_path, ENDLESS, ENDLESS, preemption=notice(server, "gcp"))
    until(lambda: last_step(tmp_path / "0" / METRICS) > 3)
    server.preempted = True
    assert codes(nodes) == [143, 143]
    assert len(checkpoint.steps_at(tmp_path / "0" / "checkpoints")) == 1


def test_without_a_notice_nothing_happens_and_an_expired_token_is_renewed(server: MetadataServer) -> None:
    aws, gcp = Aws(server.url), Gcp(server.url)
    assert aws.notice() == gcp.notice() == ""
    server.forget_tokens()
    assert aws.notice() == ""
    assert [status for method, path, status in server.requests if "instance-action" in path] == [404, 401, 404]
    server.preempted = True
    assert "terminate" in aws.notice()
    assert "preempt" in gcp.notice()


@pytest.mark.parametrize("body", [b"", b"<html>log in first</html>", b'{"action": "dance"}', b"[]", b"TRUE", b"null"])
def test_undocumented_responses_are_not_a_notice(server: MetadataServer, body: bytes) -> None:
    server.body = body
    with pytest.raises(UnexpectedResponse):
        Aws(server.url).notice()
    with pytest.raises(UnexpectedResponse):  # the header Metadata-Flavor is missing: another server
        Gcp(server.url).notice()


def test_a_silent_metadata_server_is_logged_once_and_polled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = PreemptionNotice(provider="gcp", url=f"http://127.0.0.1:{port}", poll_s=0.02)
    found: list[str] = []
    thread = watch(given, found.append)
    until(lambda: "no preemption status from gcp" in caplog.text)
    thread.join(0.3)
    assert thread.is_alive()
    assert caplog.text.count("no preemption status") == 1
    with metadata_server(port) as server:
        server.preempted = True
        thread.join(10)
    assert found == ["Compute Engine has begun to preempt this machine"]
