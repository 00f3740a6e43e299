"""The MLflow run of one stage run, opened at its start, fed while it runs, closed at its end; and the outbox.

Reads and writes `.outbox/` in the store: messages that could not be sent, because the server was down. A message is
removed when it has been sent.
"""

import base64
import logging
import time
from collections.abc import Callable, Mapping

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of
from tasks.core.stage import Listener
from tasks.core.store import Store
from tasks.run.tracking import Message, TrackingContext, run_url
from tasks.run.tracking.send import deliver, open_run, send_metrics

log = logging.getLogger("sluice.tracking")

_FLUSH_S = 3.0

OUTBOX = ".outbox"


class StageRun(Listener):
    """The MLflow run of one stage run; buffers while the server does not answer."""

    def __init__(self, context: TrackingContext, key: str, name: str, about: str = "") -> None:
        self.message = Message(context, key, name, about)
        self._flushed = 0.0
        self._down = False

    def open(self) -> str:
        """Creates or finds the run; returns its URL, or "" when MLflow is down."""
        self._attempt(lambda: open_run(self.message))
        return self.url

    @property
    def url(self) -> str:
        """URL of the run in the MLflow UI, or "" while there is none."""
        return run_url(self.message)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Listener.metrics`; sent every few seconds."""
        now = int(time.time() * 1000)
        self.message.metrics += [(name, float(value), now, step) for name, value in values.items()]
        if time.monotonic() - self._flushed > _FLUSH_S and not self._down:
            self._flushed = time.monotonic()
            self._attempt(lambda: send_metrics(self.message))

    def file(self, name: str, data: bytes) -> None:
        """See `Listener.file`."""
        self.message.files[name] = base64.b64encode(data).decode()

    def close(self, status: str, artifact: Artifact | None, error: str = "") -> bool:
        """Sends the rest and ends the run; returns whether everything was sent."""
        self.message.status = status
        self.message.error = error
        self.message.artifact = str(artifact.address) if artifact else ""
        return self._attempt(lambda: deliver(self.message, artifact))

    def _attempt(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # a failure of tracking must not fail the stage
            if not self._down:
                log.warning(
                    "MLflow at %s does not answer (%s); the run goes on and is sent later",
                    self.message.context.uri,
                    _one_line(error),
                )
            self._down = True
            return False
        self._down = False
        return True


def keep_message(store: Store, message: Message) -> None:
    """Writes a message to the outbox; it replaces an earlier one about the same run."""
    name = sha256_of(message.key.encode())[:24]
    with store.write(f"{OUTBOX}/{name}.json") as file:
        file.write(message.to_json())


def waiting_messages(store: Store) -> int:
    """Returns the number of messages in the outbox."""
    return len(store.list(OUTBOX))


def send_messages(store: Store) -> int:
    """Sends all messages; returns their number.

    Raises:
        Exception: of the MLflow client; unsent messages stay in the outbox.
    """
    sent = 0
    for path in store.list(OUTBOX):
        message = Message.from_json(store.read(path))
        artifact = Artifact.find(store, ArtifactId.parse(message.artifact)) if message.artifact else None
        deliver(message, artifact)
        store.remove(path)
        sent += 1
    if sent:
        log.info("sent %d stage runs of the outbox to MLflow", sent)
    return sent


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
