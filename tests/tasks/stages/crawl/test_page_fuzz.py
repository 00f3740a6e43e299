"""For any body, parsing raises no exception, stays within memory limits, and gives canonical links."""

import asyncio
import gzip
import logging
import random
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.traps import Traps
from tasks.stages.crawl.hosts.rules import Ruling
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.page.parser import PageParser
from tasks.stages.crawl.page.reading import Reader, mime_of
from tests.tasks.stages.crawl.page_cases import answer, drawn, memory, mutated
from tests.tasks.stages.crawl.test_reading import no_licenses

SAMPLES = Path(__file__).with_name("samples")
URL = "http://h.example/dir/page?q=1"
REASONS = {"", "noindex", "ai_optout", "soft_404", "mime"}
# Expected log messages about resource limits; any other message is a fault.
_GIVEN_UP = re.compile(r"it takes (?:more than [\d.]+ s|too much memory)$")


async def read_all(answers: Iterable[Response], caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """Reads bodies like a fetch; returns the number of parsed ones, and the peak memory of a child in MB."""
    config = CrawlConfig(exclude_pattern=r"/excluded[^?]*\?")
    parser, traps = PageParser(config.user_agent), Traps(config)
    scope = Scope(["*.example"], exclude_pattern=config.exclude_pattern)
    reader = Reader(config, parser, scope, lambda _: (), traps.note, no_licenses)
    number = child = 0
    try:
        for number, one in enumerate(answers, 1):
            mime = mime_of(one.headers)
            found = await reader.read(f"{URL}&n={number}", one, mime, Ruling(reserved=number % 100 == 0))
            assert found.reason in REASONS
            assert found.canonical == (canonical(found.canonical) or "")
            assert len(set(found.outlinks)) == len(found.outlinks)
            for link in found.outlinks:
                assert link.url.isascii()
                assert (canonical(link.url), key(link.url)) == (link.url, link.key)
                traps.refuses(link)
            lines = [record.getMessage() for record in caplog.records if record.name == "sluice.crawl"]
            assert [line for line in lines if "is kept without its links" in line and not _GIVEN_UP.search(line)] == []
            caplog.clear()
            if number % 50 == 0:
                child = max([child, *(memory("VmHWM", idle.pid) for idle in parser._idle)])
    finally:
        await parser.close()
    return number, child


def run(answers: Iterable[Response], caplog: pytest.LogCaptureFixture) -> int:
    caplog.set_level(logging.WARNING)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    count, child = asyncio.run(read_all(answers, caplog))
    assert memory("VmHWM") - before < 300
    assert child < 300
    return count


def samples() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.iterdir())]


def test_random_fragments_are_read(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(1)
    assert run((answer(drawn(chance), chance) for _ in range(1000)), caplog) == 1000


def test_corrupted_pages_are_read(caplog: pytest.LogCaptureFixture) -> None:
    chance, pages = random.Random(2), samples()
    cases = (answer(mutated(pages[number % len(pages)], chance, pages), chance) for number in range(1000))
    assert run(cases, caplog) == 1000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_corrupted_real_pages_are_read(
    shared_data: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(f"soak {seed}")
    files = sorted((shared_data / "extraction_html/html").iterdir())
    pages = [gzip.decompress(path.read_bytes()) for path in files] + samples()
    # Bodies over 128 KiB are parsed in a child: every page a few times in full, and otherwise a part.
    parts = [page[at : at + (60 << 10)] for page in pages for at in range(0, len(page), 60 << 10)]

    def cases() -> Iterable[Response]:
        for number in range(25_000):
            chosen = pages if number % 50 == 0 else parts
            yield answer(mutated(chance.choice(chosen), chance, parts), chance)

    assert run(cases(), caplog) == 25_000
