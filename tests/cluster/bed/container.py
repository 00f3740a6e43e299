"""One container: a process that starts with SIGTERM ignored (as PID 1 does), its log with times, its state."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.cluster.bed.resources import Object
from tests.cluster.bed.store import now

MARK = "BED_CONTAINER"
"""Environment variable by which everything that a container has started is found."""

_AS_PID_1 = 'trap "" TERM; exec "$@"'
Line = tuple[str, bytes]


class Log:
    """Output of a container: lines with their arrival times."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.ended = False
        self.changed = threading.Condition()

    def read_from(self, pipe: object) -> None:
        """Reads everything from a pipe, until its end."""
        for line in pipe:  # type: ignore[attr-defined]
            at = time.time_ns()
            clock = datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            with self.changed:
                self.lines.append((f"{clock}.{at % 10**9:09d}Z", line))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def follow(self, start: int, wait_s: float = 0.5) -> Iterator[Line | None]:
        """Yields the lines from number `start` on as they arrive; None from time to time while there are none."""
        while True:
            with self.changed:
                if len(self.lines) <= start and not self.ended:
                    self.changed.wait(wait_s)
                fresh, ended = self.lines[start:], self.ended
            yield from fresh
            start += len(fresh)
            if ended:
                return
            if not fresh:
                yield None

    def text(self) -> str:
        """All output so far."""
        return b"".join(line for _, line in self.lines).decode(errors="replace")


class Container:
    """One run of a container's command; a restart is a new one."""

    def __init__(self, spec: Object, folder: Path, mark: str) -> None:
        self.spec, self.folder, self.mark = spec, folder, mark
        self.command: list[str] = []
        self.env: dict[str, str] = {}
        self.message_file = folder / f"{spec['name']}.termination-log"
        self.log = Log()
        self.waiting: tuple[str, str] = ("ContainerCreating", "")
        self.started_at = self.finished_at = ""
        self.exit_code: int | None = None
        self.reason = self.message = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = 0

    @property
    def name(self) -> str:
        """The container's name in the pod."""
        return str(self.spec["name"])

    def run(self) -> None:
        """Starts the process and waits for its end."""
        self.started_at = now()
        if not self.command or shutil.which(self.command[0], path=self.env.get("PATH")) is None:
            what = f'exec: "{(self.command or [""])[0]}": executable file not found in $PATH: unknown'
            self._ended(128, "StartError", f"failed to create containerd task: {what}")
            self.log.ended = True
            return
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _AS_PID_1, "sh", *self.command],
            env=self.env,
            cwd=self.spec.get("workingDir") or self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        reader = threading.Thread(target=self.log.read_from, args=(self.process.stdout,), daemon=True)
        reader.start()
        code = self.process.wait()
        self.kill_all()  # when PID 1 ends, the kernel ends everything else in its container
        reader.join(10)
        code = code if code >= 0 else 128 - code
        self._ended(code, self.reason or ("Error" if code else "Completed"), self._termination_message(code))

    def terminate(self) -> None:
        """Sends SIGTERM to PID 1 only."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def kill(self, reason: str = "") -> None:
        """Sends SIGKILL to all processes of the container; `reason` replaces Error in its state."""
        if self.exit_code is None:
            self.reason = reason or self.reason
            self.kill_all()

    def kill_all(self) -> None:
        """Kills all processes with the container's mark."""
        for one in self.processes():
            with suppress(psutil.Error):
                one.kill()

    def processes(self) -> list[psutil.Process]:
        """All processes of the container."""
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if one.pid != os.getpid() and one.environ().get(MARK) == self.mark:
                    found.append(one)
        return found

    def memory(self) -> int:
        """Memory of its processes in bytes."""
        held = 0
        with suppress(psutil.Error):
            if self.process is not None and self.exit_code is None:
                first = psutil.Process(self.process.pid)
                for one in (first, *first.children(recursive=True)):
                    with suppress(psutil.Error):
                        held += one.memory_info().rss
        return held

    def state(self) -> Object:
        """`containerStatuses[].state` as it is now."""
        if self.exit_code is not None:
            ended = {"exitCode": self.exit_code, "reason": self.reason, "containerID": f"containerd://{self.mark}"}
            times = {"startedAt": self.started_at, "finishedAt": self.finished_at}
            return {"terminated": {**ended, **times, **({"message": self.message} if self.message else {})}}
        if self.started_at:
            return {"running": {"startedAt": self.started_at}}
        reason, message = self.waiting
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def _ended(self, code: int, reason: str, message: str) -> None:
        self.finished_at, self.reason, self.message = now(), reason, message
        self.exit_code = code

    def _termination_message(self, code: int) -> str:
        if self.message_file.exists() and (said := self.message_file.read_text(errors="replace")):
            return said[:4096]
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return "".join(self.log.text().splitlines(keepends=True)[-80:])[-2048:]
        return ""
