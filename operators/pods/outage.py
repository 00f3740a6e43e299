"""Outages of the API server: which responses are transient, and for how long calls are retried (`retry_outages`).

Responses are classified by status code and by the message of the server's Status object.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import aiohttp
from kubernetes_asyncio.client.exceptions import ApiException

log = logging.getLogger("sluice.pods")

OUTAGE_S = 900.0
"""Seconds the API server may be unavailable, or answer 429 and 5xx, before a wait ends (the pod keeps running)."""

NAMELESS_S = 40.0
"""The same for a server whose name does not resolve or whose certificate is not trusted: likely a wrong address."""

FORBIDDEN_S = 20.0
"""Seconds for which a 403 that follows a success is retried. A server that has just started returns 403 to all but
administrators until it has loaded roles and bindings: 30 to 200 ms on a small cluster (Kubernetes 1.36)."""

STARTING_S = 2.0
"""The same for a 403 to the first call: possible right after a server's start, but usually rights are missing."""

_WRONG_ADDRESS = (aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorCertificateError)
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_AUTHORIZER_MESSAGES = (" cannot ", "not yet ready to handle request")

T = TypeVar("T")


class Unreachable(Exception):
    """The API server was unavailable for longer than the caller's `outage_s`."""


class Refused(ApiException):
    """The API server returned an error; `message` is that of its Status object."""

    def __init__(self, status: int, reason: str, body: bytes = b"", retry_after: str = "") -> None:
        self.message = reason
        with suppress(ValueError, KeyError, TypeError):
            self.message = str(json.loads(body)["message"])
        self.retry_after = float(retry_after) if status == 429 and retry_after.isdigit() else None
        super().__init__(status=status, reason=self.message)

    @property
    def unknown_kind(self) -> bool:
        """Whether the kind (a custom resource) is missing, rather than the object."""
        return self.status == 404 and '"' not in self.message

    @property
    def missing_rights(self) -> bool:
        """Whether the authorizer (or an admission plug-in that is not ready) refused, not a quota or a policy."""
        return self.status == 403 and any(words in self.message for words in _AUTHORIZER_MESSAGES)

    def __str__(self) -> str:
        return f"{self.status} {self.message}"


async def retry_outages(
    call: Callable[[], Awaitable[T]], outage_s: float, description: str, forbidden_s: float = 0.0
) -> T:
    """Retries a call with back-off (1, 2, 4, ... 15 s, or the `Retry-After` header) while the server is unavailable.

    Pauses are randomly shortened by up to one half, so that not all clients retry at once.

    Args:
        call: makes one try.
        outage_s: seconds to retry while the server is unavailable.
        description: the call, for messages.
        forbidden_s: seconds to retry after a 403 of the authorizer.

    Raises:
        Unreachable: the server was unavailable for `outage_s`.
        Refused: the server refused the call.
    """
    began, pause = time.monotonic(), 1.0
    forbidden_at: float | None = None
    while True:
        try:
            return await call()
        except Refused as error:
            now = time.monotonic()
            forbidden_at = (forbidden_at or now) if error.missing_rights else None
            if not _is_transient(error, now - began, now - (forbidden_at or now), forbidden_s):
                raise
            cause, wait = str(error), error.retry_after or _jittered(pause)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause, wait = f"{type(error).__name__}: {error}", _jittered(pause)
            if isinstance(error, _WRONG_ADDRESS):
                outage_s = min(outage_s, NAMELESS_S)
        outage = time.monotonic() - began
        if outage + wait > outage_s:
            raise Unreachable(f"the Kubernetes API did not answer for {outage:.0f} s ({description}: {cause})")
        log.warning("the Kubernetes API is unavailable (%s: %s): trying again in %.1f s", description, cause, wait)
        await asyncio.sleep(wait)
        pause = min(pause * 2, 15.0)


def _is_transient(error: Refused, elapsed_s: float, forbidden_for_s: float, forbidden_s: float) -> bool:
    if error.missing_rights:
        return forbidden_for_s < forbidden_s
    # 401: the token may have expired; it is read again from its file, which the kubelet renews.
    return error.status in _TRANSIENT or (error.status == 401 and elapsed_s <= NAMELESS_S / 2)


def _jittered(pause: float) -> float:
    return pause * random.uniform(0.5, 1.0)
