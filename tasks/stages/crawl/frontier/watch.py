"""Progress of a running fetch: periodic log lines, live metrics in MLflow, and the alert of pages without links."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from tasks.core.stage import Output
from tasks.stages.crawl.db.fetchlog import CAPTURED, Outcome
from tasks.stages.crawl.hosts.politeness import Politeness

# Whose lines the operators send as alerts.
alerts = logging.getLogger("sluice.alerts")

_EVERY_S = 1.0
_METRICS_EVERY_S = 15.0
_SHOWN = 3


class Watch:
    """Counts outcomes and reports them.

    Attributes:
        captured: pages stored, those of earlier attempts of the task included.
        fetched: URLs tried by this attempt.
        errors: URLs without a page, by reason.
        hosts: that were tried.
        unread: pages whose links could not be read.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begin = time.monotonic()
        self._logged_at = self._sent = 0.0
        self.captured = 0
        self.fetched = 0
        self.errors: Counter[str] = Counter()
        self.hosts: set[str] = set()
        self.unread = 0

    @property
    def rate(self) -> float:
        """URLs tried per second by this attempt."""
        return self.fetched / max(time.monotonic() - self._begin, 0.001)

    def count(self, outcome: Outcome) -> None:
        """Takes in one outcome."""
        self.hosts.add(outcome.host)
        if outcome.unread:
            self._note_unread(outcome)
        if outcome.status in CAPTURED:
            self.captured += 1
        elif outcome.reason != "redirect":
            self.errors[outcome.reason] += 1

    def tell(
        self, spent: int, budget: int, waiting: Callable[[], tuple[int, int]], politeness: Politeness, buffered: str
    ) -> None:
        """Reports the progress of the fetch, at most once a second.

        Args:
            spent: requests made.
            budget: requests that may be made.
            waiting: returns the number of waiting URLs and of their hosts; called only for a report.
            politeness: source of the slowest hosts.
            buffered: what waits for the store, in words.
        """
        now = time.monotonic()
        if now - self._logged_at < _EVERY_S:
            return
        self._logged_at = now
        urls, hosts = waiting()
        line = f"{self.captured} pages, {self.rate:.1f} URLs/s, {urls} URLs on {hosts} hosts waiting"
        self._output.progress(spent, budget, f"{line}{self._errors()}{_slowest(politeness)}{buffered}")
        if now - self._sent > _METRICS_EVERY_S:
            self._sent = now
            live = {"live.urls_per_s": self.rate, "live.pages": self.captured, "live.waiting": urls}
            self._output.log_metrics(
                spent,
                {
                    **live,
                    "live.errors": self.errors.total(),
                    "live.hosts_waiting": hosts,
                    "live.links_unread": self.unread,
                },
            )

    def _note_unread(self, outcome: Outcome) -> None:
        self.unread += 1
        # The 1st, the 10th, the 100th: an alert tells of a change for the worse.
        if self.unread == 10 ** (len(str(self.unread)) - 1):
            text = "[%s] alert: links_unread at page %d kept without its links, %s: %s"
            alerts.warning(text, self._output.address, self.unread, outcome.url, outcome.unread)

    def finish(self, spent: int) -> None:
        """Reports the end of the fetch."""
        self._output.progress(spent, spent, f"{self.captured} pages{self._errors()}")

    def _errors(self) -> str:
        if not self.errors:
            return ""
        shown = ", ".join(f"{reason} {count}" for reason, count in self.errors.most_common(_SHOWN))
        return f", {self.errors.total()} without a page ({shown}{', ...' if len(self.errors) > _SHOWN else ''})"


def _slowest(politeness: Politeness) -> str:
    slow = [f"{host} {seconds:.1f} s" for host, seconds in politeness.slowest(_SHOWN) if seconds >= 1.0]
    return f", slowest: {', '.join(slow)}" if slow else ""
