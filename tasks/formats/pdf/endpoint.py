"""A vision model behind an OpenAI-compatible endpoint: its settings, and requests that show it a page.

Sends POST {url}/chat/completions with the page as a PNG, and returns the text of the answer. Requests that fail for the
moment (429, 5xx, time-outs, broken answers) are repeated after growing pauses; then the page is not read. What would
fail for every page ends the stage instead: a refused key, a wrong address, a server that does not answer, or several
pages in a row that could not be read. The key is in the header of the request only: neither errors nor log lines have
it, or anything that the server answers.
"""

import base64
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, Problems, SecretReference, read_reference, require_absolute
from tasks.core.errors import InputError, SluiceError, TransientError

log = logging.getLogger("sluice.extract")

_SECTION = "[extract.parsers.pdf.endpoint]"
_PROMPT = (
    "Read this page of a document. Write all of its text in reading order, exactly as it is printed, in its own "
    "language, as Markdown: # for headings, - or 1. for items of lists, Markdown tables for tables, ``` for code, TeX "
    "between $ signs for formulas and between $$ signs for formulas on a line of their own. Join the lines of a "
    "paragraph. Leave out running heads, running feet, page numbers and pictures. Do not describe, explain, translate, "
    "correct or add anything. If the page has no text, write nothing."
)
TEMPERATURE, SEED = 0, 0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 120.0
_MOST_BYTES = 16 << 20
"""Maximum bytes of an answer."""
_MOST_FAILURES = 3
"""Pages in a row that were not read, each after all tries, after which the stage ends."""
_CONNECT_S = 10.0
_OVERLOADED = frozenset((408, 409, 425, 429))


class Endpoint(Config):
    """Settings of the endpoint, the request, and the place of the answers."""

    url: str
    """Address of the API, usually ending in /v1, such as "http://127.0.0.1:8000/v1"."""

    model: str = Field(min_length=1)
    """Name of the model, as the endpoint lists it."""

    answers: str
    """Absolute path of a folder, or URL of a store, for the answers, one file per page: a page that has an answer there
    is not asked again. All workers must reach it."""

    key: SecretReference = ""
    """Reference to the API key: "env:NAME" of the task's environment (in Airflow: a secret of the deployment), or
    "file:/path". Empty: requests have no key."""

    over_http: bool = False
    """Whether pages and key may be sent over http to another machine."""

    prompt: str = Field(default=_PROMPT, min_length=1)
    """What the model is told."""

    max_tokens: int = Field(default=8_192, ge=1)
    """Limit of an answer; a page whose answer reaches it gives no text."""

    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds from a request to the end of its answer, after which it fails."""

    tries: int = Field(default=6, ge=1, le=20)
    """Requests per page; the pauses between them are 1, 2, 4 seconds and so on, or as long as the server states, at
    most two minutes."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        # With Problems, the message of the recipe does not show the value, which may have a secret.
        try:
            parts = urlsplit(value)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # it shows the value
            is_address = False
        if not is_address or parts.query or parts.fragment:
            raise Problems(["it must be an address such as https://host/v1, without a query"])
        if "@" in parts.netloc:
            raise Problems(["it must not contain a login: write key = env:NAME or file:/path"])
        return value.rstrip("/")

    @field_validator("answers")
    @classmethod
    def _is_folder(cls, value: str) -> str:
        return value if "://" in value else require_absolute(value)

    @model_validator(mode="after")
    def _is_private(self) -> "Endpoint":
        parts = urlsplit(self.url)
        if parts.scheme == "http" and not self.over_http and not _is_loopback(parts.hostname or ""):
            raise ValueError(
                f"{self.url} would send pages unencrypted to another machine; write https, or over_http = true"
            )
        return self

    @property
    def longest_s(self) -> float:
        """Maximum seconds for which a page may wait for its answer."""
        # The limit is checked between two reads, and a read may take as long.
        return self.tries * (2 * self.timeout_s + _CONNECT_S + _LONGEST_PAUSE_S)

    def read_key(self) -> str:
        """Returns the API key; "" if there is none.

        Raises:
            InputError: the key is not found, or cannot be the value of a header; the message has nothing of it.
        """
        if not self.key:
            return ""
        try:
            value = read_reference(self.key).strip()
        except (OSError, KeyError, UnicodeDecodeError):
            cause = f"the key of {_SECTION} is not found at {self.key}"
            raise InputError(cause, "set it where the stage runs") from None
        if not value or not value.isascii() or not value.isprintable():
            cause = f"the key of {_SECTION} at {self.key} is not a valid header value"
            raise InputError(cause, "it must be one line of printable ASCII")
        return value


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Answer:
    """Answer of the model: its text, and why it ended ("stop", "length")."""

    text: str
    finish_reason: str


class _Failure(Exception):
    """A request that gave no answer.

    Args:
        reason: for messages.
        again: whether the request may be repeated.
        pause_s: pause that the server states, in seconds.
        reached: whether a server was reached.
    """

    def __init__(self, reason: str, *, again: bool = True, pause_s: float = 0.0, reached: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.pause_s = pause_s
        self.reached = reached


class Client:
    """Asks the model of an endpoint, one page after the other.

    Args:
        endpoint: the settings.
        sleep: waits for a number of seconds.
    """

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self._endpoint = endpoint
        self._sleep = sleep
        self._failed = 0

    def ask(self, png: bytes) -> Answer | None:
        """Returns the answer for a picture of a page; None if the endpoint gives none.

        Raises:
            InputError: key, address or model is wrong, or the endpoint refuses pages.
            TransientError: the server cannot be reached, or has not read several pages in a row.
        """
        body = self._request(png)
        for number in range(self._endpoint.tries):
            try:
                answer = self._answer(body)
            except _Failure as error:
                failure = error
                if not failure.again or number + 1 == self._endpoint.tries:
                    break
                self._sleep(min(max(_FIRST_PAUSE_S * 2**number, failure.pause_s), _LONGEST_PAUSE_S))
            else:
                self._failed = 0
                return answer
        self._check(failure)
        log.warning("a page was not read by %s: %s", self._endpoint.url, failure.reason)
        return None

    def _check(self, failure: _Failure) -> None:
        """Counts a page that was not read; raises the error that ends the stage."""
        url = self._endpoint.url
        self._failed += 1
        if not failure.reached:
            raise TransientError(
                f"{url} cannot be reached ({failure.reason})", f"start the model server, or correct {_SECTION} url"
            )
        if self._failed >= _MOST_FAILURES:
            kind = TransientError if failure.again else InputError
            cause = f"{url} has not read {self._failed} pages in a row ({failure.reason})"
            raise kind(cause, f"see the log of the model server, or correct {_SECTION}")

    def _request(self, png: bytes) -> bytes:
        picture = {"url": "data:image/png;base64," + base64.b64encode(png).decode()}
        content = [{"type": "text", "text": self._endpoint.prompt}, {"type": "image_url", "image_url": picture}]
        fields = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self._endpoint.max_tokens,
            "temperature": TEMPERATURE,
            "seed": SEED,
        }
        return json.dumps(fields, ensure_ascii=False).encode()

    def _answer(self, body: bytes) -> Answer:
        """Returns the answer to one request; raises _Failure, or InputError for what would fail for every page."""
        import requests

        until = time.monotonic() + self._endpoint.timeout_s
        try:
            with self._session.post(
                f"{self._endpoint.url}/chat/completions",
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=(_CONNECT_S, self._endpoint.timeout_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                if response.status_code != 200:
                    raise self._failure_of(response.status_code, response.headers.get("Retry-After", ""))
                return _parsed(_content(response, until))
        except requests.RequestException as error:
            raise _failure_of(error) from None

    def _failure_of(self, status: int, retry_after: str) -> SluiceError | _Failure:
        url, reason = self._endpoint.url, f"HTTP {status}"
        if status in (401, 403):
            stated = f"the key at {self._endpoint.key}" if self._endpoint.key else "requests without a key"
            return InputError(f"{url} refuses {stated} ({reason})", f"correct the key, or {_SECTION} key")
        if status == 404:
            cause = f"{url} has no model {self._endpoint.model}, or is not the address of the API ({reason})"
            return InputError(cause, f"correct url, which usually ends in /v1, or model in {_SECTION}")
        if status < 400:
            return InputError(f"{url} answers with {reason}, not with the text of a page", f"correct {_SECTION} url")
        return _Failure(reason, again=status >= 500 or status in _OVERLOADED, pause_s=_seconds(retry_after))

    @cached_property
    def _session(self) -> Any:
        import requests

        key = self._endpoint.read_key()

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            # A function keeps requests from sending a password that ~/.netrc has for the host.
            if key:
                request.headers["Authorization"] = f"Bearer {key}"
            return request

        session = requests.Session()
        session.auth = authorize
        return session


def _failure_of(error: Exception) -> _Failure:
    """Returns what an error of the client means; its text is not used, because it may have more than an address."""
    import requests

    cause = getattr(error.args[0] if error.args else None, "reason", None)
    unreached = (requests.exceptions.ConnectTimeout, requests.exceptions.SSLError, requests.exceptions.ProxyError)
    kinds = {kind.__name__ for kind in type(cause).__mro__}  # of urllib3, which is not ours to import
    if isinstance(error, unreached) or "NewConnectionError" in kinds:
        return _Failure(type(cause or error).__name__, reached=False)
    return _Failure(type(error).__name__)


def _content(response: Any, until: float) -> bytes:
    """Returns the body of a response; raises _Failure if its end is not read until this time (`time.monotonic`)."""
    import requests

    data = bytearray()
    try:
        # read1 returns what has arrived; other reads wait for a full block, of which a server may send a byte a minute.
        while block := response.raw.read1(1 << 16, decode_content=True):
            data += block
            if len(data) > _MOST_BYTES:
                raise _Failure(f"an answer of more than {_MOST_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise _Failure("an answer that takes too long")
    except requests.packages.urllib3.exceptions.HTTPError as error:  # type: ignore[attr-defined]  # not in its stubs
        raise _Failure(type(error).__name__) from None
    return bytes(data)


def _parsed(data: bytes) -> Answer:
    try:
        choice = json.loads(data)["choices"][0]
        text, finish_reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _Failure("an answer that is not a chat completion") from None
    if not isinstance(text, str | None) or not isinstance(finish_reason, str | None):
        raise _Failure("an answer that is not a chat completion")
    return Answer((text or "").encode("utf-8", "replace").decode(), finish_reason or "")


def _seconds(retry_after: str) -> float:
    """Returns the seconds of a Retry-After header (RFC 9110, 10.2.3), a number or a date; 0 if it is neither."""
    if retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10:
        return float(retry_after)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    return 0.0
