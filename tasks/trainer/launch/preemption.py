"""Watches the metadata server of a spot machine for the notice of its end.

Reads AWS's `spot/instance-action` by IMDSv2, or GCP's `instance/preempted`
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
cloud.google.com/compute/docs/instances/create-use-spot). Requests are direct, whatever proxy the environment names, and
short. They are made by a thread of the agent, so no step waits for them.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from tasks.trainer.place import PreemptionNotice

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
