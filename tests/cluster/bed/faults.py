"""Scripted faults of the API: the next matching requests get an error, or their response is lost."""

import threading
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch

from tests.cluster.bed.resources import ApiError

MESSAGES = {
    403: ("Forbidden", 'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"'),
    409: ("AlreadyExists", "object already exists"),
    410: ("Expired", "too old resource version: 1 (1000)"),
    429: ("TooManyRequests", "too many requests, please try again later"),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
}
_NO_LOG = 'Get "https://node:10250/containerLogs/x": dial tcp 127.0.0.1:10250: connect: connection refused'


class Reset(Exception):
    """The connection is to be reset."""


@dataclass
class Fault:
    """One rule; `hits` counts the matching requests."""

    verb: str
    path: str
    times: int
    code: int | None
    retry_after: int | None = None
    late: bool = False
    message: str = ""
    delay_s: float = 0.0
    hits: int = 0


@dataclass
class Faults:
    """The active rules; the first matching one that is not used up applies.

    `verb` is create, get, list, watch, patch, update, delete, log or `*`; `path` is a pattern such as `*/pods/*`.
    """

    rules: list[Fault] = field(default_factory=list)
    log_cuts: list[Fault] = field(default_factory=list)
    cut_log_after: int = 0
    """Log streams break off, without a word, once so many lines were sent; 0: they do not."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(
        self, code: int, *, verb: str = "*", path: str = "*", times: int = 1, retry_after: int | None = None
    ) -> Fault:
        """The next `times` matching requests get this status without being executed."""
        return self._add(Fault(verb, path, times, code, retry_after))

    def reset(self, *, verb: str = "*", path: str = "*", times: int = 1) -> Fault:
        """The next `times` matching requests are reset without being executed."""
        return self._add(Fault(verb, path, times, None))

    def lose_reply(self, *, verb: str = "*", path: str = "*", times: int = 1, code: int | None = None) -> Fault:
        """The next `times` matching requests are executed, but their response is lost (a reset, or `code`)."""
        return self._add(Fault(verb, path, times, code, late=True))

    def delay_reply(self, seconds: float, *, verb: str = "*", path: str = "*", times: int = 1) -> Fault:
        """The next `times` matching requests are executed at once and answered after `seconds`."""
        return self._add(Fault(verb, path, times, None, late=True, delay_s=seconds))

    def cut_log(self, *, path: str = "*", times: int = 1) -> Fault:
        """The next `times` matching log streams break off in the middle of their second line."""
        rule = Fault("log", path, times, None)
        self.log_cuts.append(rule)
        return rule

    def clear(self) -> None:
        """Ends all faults."""
        self.rules.clear()
        self.log_cuts.clear()

    def logs_unreachable(self, times: int = 10**6) -> Fault:
        """Log requests fail as if the node were unreachable; the status of pods is still reported."""
        return self._add(Fault("log", "*", times, 500, message=_NO_LOG))

    def check(self, verb: str, path: str, late: bool = False) -> None:
        """Applies a matching rule to a request, before it is executed or (`late`) afterwards.

        Raises:
            ApiError: the rule answers with an error.
            Reset: the rule resets the connection.
        """
        rule = self._met(self.rules, verb, path, late)
        if rule is None:
            return
        if rule.delay_s:
            time.sleep(rule.delay_s)
            return
        if rule.code is None:
            raise Reset
        reason, message = MESSAGES.get(rule.code, ("", f"scripted answer {rule.code}"))
        error = ApiError(rule.code, reason, rule.message or message)
        error.headers |= {} if rule.retry_after is None else {"Retry-After": str(rule.retry_after)}
        raise error

    def cuts(self, path: str) -> bool:
        """Whether a rule cuts this log stream."""
        return self._met(self.log_cuts, "log", path, False) is not None

    def _met(self, rules: list[Fault], verb: str, path: str, late: bool) -> Fault | None:
        with self._lock:
            for one in rules:
                fits = fnmatch(verb, one.verb) and fnmatch(path, one.path) and one.late == late
                if fits and one.hits < one.times:
                    one.hits += 1
                    return one
        return None

    def _add(self, rule: Fault) -> Fault:
        self.rules.append(rule)
        return rule
