"""Messages to MLflow that could not be sent, kept in the store until they can be.

Written by the runner when a stage ends while MLflow is down; emptied by the next stage that finds it up, and by
`python -m tasks sync`.
"""

import logging

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.digest import sha256_of
from tasks.core.store import Store
from tasks.run.tracking.message import Message
from tasks.run.tracking.send import deliver

log = logging.getLogger("sluice.tracking")

FOLDER = ".outbox"


def keep(store: Store, message: Message) -> None:
    """Puts a message into the outbox, in place of an earlier one about the same run."""
    name = sha256_of(message.key.encode())[:24]
    with store.write(f"{FOLDER}/{name}.json") as file:
        file.write(message.to_json())


def waiting(store: Store) -> int:
    """Returns how many messages wait."""
    return len(store.list(FOLDER))


def send(store: Store) -> int:
    """Sends what waits, oldest key first; returns how many went.

    Raises:
        Exception: what the MLflow client raises; messages not sent yet stay.
    """
    sent = 0
    for path in store.list(FOLDER):
        message = Message.from_json(store.read(path))
        artifact = Artifact.find(store, ArtifactId.parse(message.artifact)) if message.artifact else None
        deliver(message, artifact)
        store.remove(path)
        sent += 1
    if sent:
        log.info("%d stage runs that MLflow had missed are sent", sent)
    return sent
