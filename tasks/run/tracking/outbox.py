"""The outbox: what MLflow missed while it was down, and what it has refused.

A message is about one stage run. It waits in `.outbox/` of the store until a later stage sends it, or `sluice
sync`. What MLflow refuses for good (a deleted experiment or run, a name that it does not accept), and what cannot be
read any more, is set aside in `.outbox-refused/` with the reason, and the messages behind it are sent. `sync` tries it
again, after a person has corrected the cause, or forgets it.
"""

import json
import logging
from dataclasses import dataclass, field

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of
from tasks.core.store import Store
from tasks.run.tracking import Message
from tasks.run.tracking.send import deliver, is_fault, is_refusal, is_up, one_line, traceback_of

log = logging.getLogger("sluice.tracking")

OUTBOX, REFUSED = ".outbox", ".outbox-refused"


@dataclass(frozen=True)
class Unsent:
    """A message that was not sent, and why. `experiment`, `version` and `stage` are "" if it cannot be read."""

    experiment: str
    version: str
    stage: str
    reason: str

    def __str__(self) -> str:
        name = f"{self.experiment}: {self.stage}" if self.stage else "a message that cannot be read"
        return f"{name}{f' @{self.version}' if self.version else ''}: {self.reason}"


@dataclass
class Delivery:
    """Outcome of sending.

    `sent` is the number of messages; `down` has the reasons by server that does not respond; `kept` are messages that
    wait though their server responds, `refused` those that were set aside.
    """

    sent: int = 0
    down: dict[str, str] = field(default_factory=dict)
    kept: list[Unsent] = field(default_factory=list)
    refused: list[Unsent] = field(default_factory=list)


def keep_message(store: Store, message: Message) -> None:
    """Writes a message to the outbox, replacing an earlier one about the same run."""
    name = sha256_of(message.key.encode())[:24]
    with store.write(f"{OUTBOX}/{name}.json") as file:
        file.write(message.to_json())


def waiting_messages(store: Store) -> int:
    """Returns the number of messages in the outbox."""
    return len(store.list(OUTBOX))


def forget_refused(store: Store) -> int:
    """Removes the messages that were set aside; returns their number."""
    paths = store.list(REFUSED)
    for path in paths:
        store.remove(path)
    return len(paths)


def send_messages(store: Store, *, again: bool = False) -> Delivery:
    """Sends all messages in the outbox, and with `again` those that were set aside.

    A message that is not sent stays, or is set aside, and those behind it are sent. A server that does not respond gets
    no further message of this call.

    Raises:
        StoreError: the store denies access. Errors of MLflow are in the result.
    """
    delivery = Delivery()
    refused = store.list(REFUSED) if again else []  # without those of this call
    for path in (*store.list(OUTBOX), *refused):
        if text := _text(store, path):
            _send(store, path, text, delivery)
    if delivery.sent:
        log.info("sent %d stage runs from the outbox to MLflow", delivery.sent)
    return delivery


def _send(store: Store, path: str, text: str, delivery: Delivery) -> None:
    """Sends one message and removes it, or sets it aside, or leaves it; writes the outcome to `delivery`."""
    name, server = path.rpartition("/")[2], ""
    try:
        if path.startswith(f"{REFUSED}/"):
            text = str(json.loads(text)["message"])
        message = Message.from_json(text.encode())
        server = message.context.uri
        if server in delivery.down:
            return
        artifact = Artifact.find(store, ArtifactId.parse(message.artifact)) if message.artifact else None
        deliver(store, message, artifact)
    except Exception as error:
        unsent = _unsent(text, one_line(error))
        if is_refusal(error):
            _set_aside(store, name, text, unsent)
            if is_fault(error):
                log.error("a run is set aside by a fault of Sluice: %s%s", unsent, traceback_of(error))
            else:
                log.warning(
                    "MLflow refuses a run, which is set aside; correct the cause, then `sluice sync`: %s", unsent
                )
            delivery.refused.append(unsent)
        elif is_up(server):
            log.warning("a run is not sent to MLflow now: %s", unsent)
            delivery.kept.append(unsent)
        else:
            delivery.down[server] = unsent.reason
        return
    store.remove(f"{OUTBOX}/{name}")
    store.remove(f"{REFUSED}/{name}")
    delivery.sent += 1


def _set_aside(store: Store, name: str, text: str, unsent: Unsent) -> None:
    with store.write(f"{REFUSED}/{name}") as file:
        file.write(json.dumps({"reason": unsent.reason, "message": text}).encode())
    store.remove(f"{OUTBOX}/{name}")


def _text(store: Store, path: str) -> str:
    """Returns the text of a file; "" if another process has just sent its message."""
    try:
        return store.read(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _unsent(text: str, reason: str) -> Unsent:
    try:
        message = Message.from_json(text.encode())
    except (ValueError, KeyError, TypeError):
        return Unsent("", "", "", reason)
    return Unsent(message.context.experiment, message.version, message.name, reason)
