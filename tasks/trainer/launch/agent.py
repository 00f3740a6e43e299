"""Starts and restarts the ranks of one node: `python -m tasks.trainer.agent --spec spec.json --nproc 2`.

Wraps torchrun, which returns 1 for every failure, with exit codes that tell failures apart: 0 is done, 2 a run that
cannot work as configured, 137 a rank that was killed (usually out of memory) more often than it may be restarted, 143
stopped after a checkpoint, by SIGTERM or by the notice of a preemption (see `preemption`). Several nodes are described
by torchrun's variables (see `gang`) and run without torchrun (see `gang_agent`).

A single rank needs no rendezvous: it is supervised here without torchrun, which saves importing torch a second time
(1.5 CPU-seconds of the 4 that an empty run takes).

Watches the metadata server of a spot machine for the notice of its end.

Reads AWS's `spot/instance-action` by IMDSv2, or GCP's `instance/preempted`
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
cloud.google.com/compute/docs/instances/create-use-spot). Requests are direct, whatever proxy the environment names, and
short. They are made by a thread of the agent, so no step waits for them.
"""

import argparse
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tasks.trainer.config import TrainSpec
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.launcher import end_with_parent
from tasks.trainer.logs import METRICS, PREEMPTION, Faults, last_step
from tasks.trainer.place import PreemptionNotice, preemption_here

MAX_RESTARTS = 5
"""How many crashes are followed by a restart of all ranks; after that the agent returns the exit code."""
FINAL = (0, 2, 143)
"""Exit codes of a rank after which nothing is restarted."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # otherwise torchrun logs a long warning; ranks set their own number
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "100",  # seconds to save in after SIGTERM; below the grace of the pod
    # By default all restarts share one store (torch 2.13, dynamic_rendezvous.py), where ranks find the addresses of the
    # previous attempt: connections are refused, which uses up a restart, or the ranks wait for one another for ever.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Keep freed memory: glibc maps and unmaps large buffers otherwise, and clearing their pages took a tenth of a step.
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}


def main() -> int:
    """Runs all ranks of this node to the end; returns the exit code."""
    end_with_parent()
    # torchrun installs its handlers when it starts the ranks; before that, as PID 1, SIGTERM would be ignored.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="python -m tasks.trainer.agent")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a TrainSpec")
    parser.add_argument("--nproc", type=int, default=1, help="ranks on this node")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if notice := preemption_here():
        watch(notice, partial(_preempted, arguments.spec))
    if gang := Gang.from_environment():
        from tasks.trainer.launch.gang_agent import run_gang

        where = f"[node {gang.node}]"
        logging.basicConfig(level=logging.INFO, format=f"{where} %(levelname)s %(message)s", stream=sys.stderr)
        return run_gang(arguments.spec, arguments.nproc, gang, MAX_RESTARTS, FINAL)
    return run_alone(arguments.spec) if arguments.nproc == 1 else run_ranks(arguments.spec, arguments.nproc)


def _preempted(spec: Path, what: str) -> None:
    """Records the notice of a preemption and does what SIGTERM does, by SIGTERM."""
    out = Path(TrainSpec.model_validate_json(spec.read_bytes()).out)
    try:
        do = "nothing: the run saves and ends, and resumes on another machine"
        Faults(out).report(PREEMPTION, last_step(out / METRICS), what, do)
    finally:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def run_alone(spec: Path) -> int:
    """Runs one rank and restarts it after a crash; returns its exit code as a shell would."""
    code = 1
    stops: list[int] = []
    for _ in range(1 + MAX_RESTARTS):
        rank = subprocess.Popen([sys.executable, "-m", "tasks.trainer", "--spec", str(spec)])
        signal.signal(signal.SIGTERM, partial(_pass_on, rank, stops))
        code = rank.wait()
        if code in FINAL or stops:
            break
        print(f"the rank ended with {code}; it resumes from its newest checkpoint", file=sys.stderr, flush=True)
    return 128 - code if code < 0 else code


def _pass_on(rank: "subprocess.Popen[bytes]", stops: list[int], number: int, frame: object) -> None:
    stops.append(number)
    rank.send_signal(number)


def run_ranks(spec: Path, nproc: int) -> int:
    """Runs torchrun in this process; returns the exit code of the first rank that failed, as a shell would."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = [
        "--standalone",
        f"--nproc-per-node={nproc}",
        f"--max-restarts={MAX_RESTARTS}",
        "--monitor-interval=0.1",
    ]
    try:
        run.main([*arguments, "-m", "tasks.trainer", "--spec", str(spec)])
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return 128 - code if code < 0 else code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
TOKEN_TTL_S = 21600
"""Of a token of IMDSv2: six hours, the most."""
ACTIONS = ("hibernate", "stop", "terminate")
_MOST_BYTES = 4096


class NoAnswer(Exception):
    """The metadata server answers something else than documented."""


class Provider(Protocol):
    """Where the notice of a provider is found."""

    def notice(self) -> str:
        """Returns what is announced, "" where nothing is.

        Raises:
            NoAnswer, OSError, http.client.HTTPException: unknown.
        """


class Aws:
    """EC2's instance metadata service, version 2: every request carries a token, which is renewed when it expires.

    Args:
        url: `http://host`, with a port where it is not 80.
    """

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def notice(self) -> str:
        """See `Provider`. A machine that is not marked has no `instance-action`: 404."""
        status, _, body = self._get()
        if status == 401:  # the token has expired
            self._token = ""
            status, _, body = self._get()
        if status == 404:
            return ""
        try:
            found = json.loads(body) if status == 200 else {}
            action, when = str(found["action"]), str(found.get("time", "soon"))
        except (ValueError, TypeError, KeyError, AttributeError):
            action, when = "", ""
        if action not in ACTIONS:
            raise NoAnswer(f"instance-action: status {status}, {body[:80]!r}")
        return f"EC2 will {action} this machine at {when}"

    def _get(self) -> tuple[int, http.client.HTTPMessage, str]:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            status, _, body = request(self._url, "PUT", "/latest/api/token", ttl)
            if status != 200:
                raise NoAnswer(f"no token of IMDSv2: status {status}")
            self._token = body
        return request(
            self._url, "GET", "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self._token}
        )


class Gcp:
    """Compute Engine's metadata server.

    Args:
        url: as for `Aws`.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def notice(self) -> str:
        """See `Provider`. `preempted` is TRUE or FALSE; the server's answers have the header of the request, too."""
        path, flavor = "/computeMetadata/v1/instance/preempted", "Metadata-Flavor"
        status, headers, body = request(self._url, "GET", path, {flavor: "Google"})
        if status != 200 or headers.get(flavor) != "Google" or body.strip() not in ("TRUE", "FALSE"):
            raise NoAnswer(f"preempted: status {status}, {body[:80]!r}")
        return "Compute Engine has begun to preempt this machine" if body.strip() == "TRUE" else ""


PROVIDERS: dict[str, tuple[Callable[[str], Provider], str]] = {
    "aws": (Aws, "http://169.254.169.254"),
    "gcp": (Gcp, "http://metadata.google.internal"),
}
"""Interface and address by name of the provider."""


def request(url: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, http.client.HTTPMessage, str]:
    """Returns status, headers and the first bytes of the body; follows no redirection and uses no proxy.

    Raises:
        OSError, http.client.HTTPException: there is no answer.
    """
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read(_MOST_BYTES).decode(errors="replace")
    finally:
        connection.close()


def watch(settings: PreemptionNotice, noticed: Callable[[str], None]) -> threading.Thread:
    """Starts a thread that asks at once and every `poll_s` seconds, and calls `noticed` once; returns it.

    A server that does not answer is one line of the log, until it answers again.

    Args:
        settings: whom to ask.
        noticed: called by the thread with what is announced.
    """
    kind, usual = PROVIDERS[settings.provider]
    provider, where = kind(settings.url or usual), f"{settings.provider} ({settings.url or usual})"

    def work() -> None:
        silent = False
        while True:
            try:
                found = provider.notice()
                silent = False
            except (NoAnswer, OSError, http.client.HTTPException) as error:
                if not silent:
                    log.warning("no answer about preemptions from %s: %s: %s", where, type(error).__name__, error)
                found, silent = "", True
            if found:
                noticed(found)
                return
            time.sleep(settings.poll_s)

    thread = threading.Thread(target=work, name="preemption", daemon=True)
    thread.start()
    return thread
