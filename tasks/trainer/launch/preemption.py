"""Polls the metadata server of a spot machine for a preemption notice.

Reads AWS's `spot/instance-action` by IMDSv2, or GCP's `instance/preempted`
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
cloud.google.com/compute/docs/instances/create-use-spot). Requests have a short timeout and ignore proxies. They are
made by a thread of the agent, so no step waits for them.
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
"""Lifetime of a token of IMDSv2: six hours, the maximum."""
ACTIONS = ("hibernate", "stop", "terminate")
_MOST_BYTES = 4096


class UnexpectedResponse(Exception):
    """The response of the metadata server is not as documented."""


class Provider(Protocol):
    """Interface to the metadata server of a provider."""

    def notice(self) -> str:
        """Returns the preemption notice, "" if there is none.

        Raises:
            UnexpectedResponse, OSError, http.client.HTTPException: the state is unknown.
        """


class Aws:
    """EC2's instance metadata service, version 2. Requests contain a token, which is renewed when it expires.

    Args:
        url: `http://host`, with the port unless it is 80.
    """

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def notice(self) -> str:
        """See `Provider`. Without a notice, `instance-action` does not exist (404)."""
        status, _, body = self._get()
        if status == 401:  # the token has expired
            self._token = ""
            status, _, body = self._get()
        if status == 404:
            return ""
        try:
            content = json.loads(body) if status == 200 else {}
            action, when = str(content["action"]), str(content.get("time", "soon"))
        except (ValueError, TypeError, KeyError, AttributeError):
            action, when = "", ""
        if action not in ACTIONS:
            raise UnexpectedResponse(f"instance-action: status {status}, {body[:80]!r}")
        return f"EC2 will {action} this machine at {when}"

    def _get(self) -> tuple[int, http.client.HTTPMessage, str]:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            status, _, body = request(self._url, "PUT", "/latest/api/token", ttl)
            if status != 200:
                raise UnexpectedResponse(f"IMDSv2 returned no token: status {status}")
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
        """See `Provider`. `preempted` is TRUE or FALSE; responses of the server repeat the header of the request."""
        path, flavor = "/computeMetadata/v1/instance/preempted", "Metadata-Flavor"
        status, headers, body = request(self._url, "GET", path, {flavor: "Google"})
        if status != 200 or headers.get(flavor) != "Google" or body.strip() not in ("TRUE", "FALSE"):
            raise UnexpectedResponse(f"preempted: status {status}, {body[:80]!r}")
        return "Compute Engine has begun to preempt this machine" if body.strip() == "TRUE" else ""


PROVIDERS: dict[str, tuple[Callable[[str], Provider], str]] = {
    "aws": (Aws, "http://169.254.169.254"),
    "gcp": (Gcp, "http://metadata.google.internal"),
}
"""Interface and default address by provider."""


def request(url: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, http.client.HTTPMessage, str]:
    """Returns status, headers and the start of the body; does not follow redirects or use proxies.

    Raises:
        OSError, http.client.HTTPException: there is no response.
    """
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read(_MOST_BYTES).decode(errors="replace")
    finally:
        connection.close()


def watch(settings: PreemptionNotice, on_notice: Callable[[str], None]) -> threading.Thread:
    """Starts a thread that polls immediately and every `poll_s` seconds, and calls `on_notice` once; returns it.

    A server that does not respond is logged once, until it responds again.

    Args:
        settings: provider and URL of the metadata server.
        on_notice: called by the thread with the notice.
    """
    interface, default_url = PROVIDERS[settings.provider]
    provider, server = interface(settings.url or default_url), f"{settings.provider} ({settings.url or default_url})"

    def work() -> None:
        silent = False
        while True:
            try:
                notice = provider.notice()
                silent = False
            except (UnexpectedResponse, OSError, http.client.HTTPException) as error:
                if not silent:
                    log.warning("no preemption status from %s: %s: %s", server, type(error).__name__, error)
                notice, silent = "", True
            if notice:
                on_notice(notice)
                return
            time.sleep(settings.poll_s)

    thread = threading.Thread(target=work, name="preemption", daemon=True)
    thread.start()
    return thread
