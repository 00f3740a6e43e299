"""Resuming a fetch: what earlier attempts of the task have closed is read, and replayed as if it came now.

The order of URLs is a function of the fetch list and of outcomes, never of time: replayed in its order, what was logged
leads to the state in which the earlier attempt was, and the fetch goes on from there. Nothing is requested again.
"""

import logging
from collections.abc import Iterable, Iterator

from tasks.core import parquet
from tasks.core.artifact import PartRecord
from tasks.core.stage import Output
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.storage.fetchlog import Outcome, from_tables
from tasks.stages.crawl.storage.segment import LINK, LOG
from tasks.stages.crawl.storage.spool import Spool
from tasks.stages.crawl.visit import Visitor

log = logging.getLogger("sluice.crawl")


def resume(parts: Iterable[list[Outcome]], order: UrlOrder, visitor: Visitor) -> None:
    """Replays the outcomes of earlier attempts; one part at a time is in memory.

    Args:
        parts: see `logged_outcomes`.
        order: gives the candidates of these outcomes.
        visitor: replays outcomes; those of URLs whose turn has not come yet when their visit begins.
    """
    for part in parts:
        rows = {outcome.url: outcome for outcome in part}
        # A part holds for each of its hosts what came next, so that hosts may be gone through one by one; those that
        # had to wait for others come to their turn when these are through.
        hosts = list(dict.fromkeys(outcome.host for outcome in part))
        while hosts:
            host = hosts.pop()
            while order.peek(host) in rows and (candidate := order.take(host)) is not None:
                visitor.replay(candidate, rows.pop(candidate.url))
            hosts += order.newly_available()
        visitor.expect(rows.values())
    visitor.log_refused()


def logged_outcomes(output: Output, spool: Spool) -> Iterator[list[Outcome]]:
    """Yields what earlier attempts of the task have closed, part by part in the order in which they were closed.

    Some parts are stored, others are on this machine and are queued for the store.
    """
    urls: set[str] = set()
    for _, record in sorted(output.committed.items()):
        stored = {path: output.store.read(f"{output.address.path}/{path}") for path in _logs(record)}
        outcomes = _outcomes(stored)
        urls.update(outcome.url for outcome in outcomes)
        yield outcomes
    for closed in spool.buffer.take_over_parts():
        outcomes = _outcomes({path: (closed.folder / path).read_bytes() for path in _logs(closed.record)})
        # The task may have continued elsewhere, or was killed between storing a part and removing it here.
        if not urls.isdisjoint(outcome.url for outcome in outcomes):
            closed.remove()
            continue
        log.info("[%s] %d URLs found in the local buffer %s", output.address, len(outcomes), closed.folder)
        spool.put(closed)
        urls.update(outcome.url for outcome in outcomes)
        yield outcomes


def _logs(record: PartRecord) -> list[str]:
    return [entry.path for entry in record.files if entry.path.startswith((LOG, LINK))]


def _outcomes(files: dict[str, bytes]) -> list[Outcome]:
    tables = {
        folder: parquet.from_bytes(data)
        for folder in (LOG, LINK)
        for path, data in files.items()
        if path.startswith(folder)
    }
    return from_tables(tables[LOG], tables[LINK]) if LOG in tables else []
