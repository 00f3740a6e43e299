"""Resuming a fetch: reads the outcomes of earlier attempts of the task, and replays them without requests.

The order of URLs is a function of the fetch list and of outcomes, independent of time. Replaying the logged outcomes in
that order restores the state of the earlier attempt, and the fetch continues from there.
"""

import logging
from collections.abc import Iterable, Iterator

from tasks.core import parquet
from tasks.core.artifact import PartRecord
from tasks.core.stage import Output
from tasks.formats.web.url import key
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.storage.fetchlog import Outcome, from_tables
from tasks.stages.crawl.storage.segment import LINK, LOG
from tasks.stages.crawl.storage.spool import Spool
from tasks.stages.crawl.visit import Visitor

log = logging.getLogger("sluice.crawl")


def resume(parts: Iterable[list[Outcome]], order: UrlOrder, visitor: Visitor) -> None:
    """Replays the outcomes of earlier attempts, with one part in memory at a time.

    Args:
        parts: see `logged_outcomes`.
        order: the order of URLs, which the outcomes advance.
        visitor: replays outcomes. Outcomes of URLs whose turn has not come are replayed when they are visited.
    """
    for part in parts:
        outcomes = {outcome.key: outcome for outcome in part}
        # For each of its hosts, a part contains the next URLs in order, so hosts can be replayed one after another. A
        # host that waits for others becomes available again when they have finished the round.
        hosts = list(dict.fromkeys(outcome.host for outcome in part))
        while hosts:
            host = hosts.pop()
            while key(order.peek(host)) in outcomes and (candidate := order.take(host)) is not None:
                visitor.replay(candidate, outcomes.pop(key(candidate.url)))
            hosts += order.newly_available()
        visitor.expect(outcomes.values())
    visitor.log_refused()


def logged_outcomes(output: Output, spool: Spool) -> Iterator[list[Outcome]]:
    """Yields the outcomes of earlier attempts of the task, by part, in the order in which the parts were closed.

    Parts in the store come first, then those in the local buffer of this machine, which are queued for upload.
    """
    urls: set[str] = set()
    for _, record in sorted(output.committed.items()):
        stored = {path: output.store.read(f"{output.address.path}/{path}") for path in _logs(record)}
        outcomes = _outcomes(stored)
        urls.update(outcome.url for outcome in outcomes)
        yield outcomes
    for closed in spool.buffer.take_over_parts():
        outcomes = _outcomes({path: (closed.folder / path).read_bytes() for path in _logs(closed.record)})
        # The part is already stored: the task continued elsewhere, or was killed before it removed the local copy.
        if not urls.isdisjoint(outcome.url for outcome in outcomes):
            closed.remove()
            continue
        log.info("[%s] %d URLs are in the local buffer %s", output.address, len(outcomes), closed.folder)
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
