"""Outbox of messages to MLflow that could not be sent, because the server was down.

Reads and writes `.outbox/` in the store; a message is removed when it has been sent.
"""

import logging

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of
from tasks.core.store import Store
from tasks.run.tracking import Message
from tasks.run.tracking.send import deliver

log = logging.getLogger("sluice.tracking")

OUTBOX = ".outbox"


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
