"""Random versions and the index after each follow the rules of `docs/dedup.md`.

Pages are added, edited, mirrored and captured again with the same and with other bytes; files come and go; documents,
pages and hosts are taken down and lifted; parts are merged. `make soak` draws twenty times as many.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.core.errors import InputError
from tasks.formats.documents.document import document_id
from tasks.formats.documents.text import digest128
from tasks.formats.documents.tombstones import DOCUMENT, DOMAIN, URL
from tasks.stages.dedup import DedupConfig
from tests.tasks.stages.dedup.made import document
from tests.tasks.stages.dedup_index.cycles import CONSOLIDATE, DEDUP, Cycles, Rows
from tests.tasks.stages.dedup_index.oracle import Oracle, page

SURE = {"bands": 64, "rows": 2}
"""Bands in which no two texts of a similarity of 0.8 fail to meet."""
ODD = ("short text", "...", "one two three four", "你好世界这是一个测试文本没有空格", "🙂 🙃 🙂 🙃 🙂")


class Web:
    """Pages and files that change from version to version."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.topics = self.draw.choice([4, 8, 12])
        self.files: dict[str, dict[str, Any]] = {}
        self.seen: Rows = []

    def rows(self, version: int) -> Rows:
        """What one version reads: new captures, captures of earlier ones, and all files."""
        draw, month = self.draw, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=30 * version)
        found = [self._capture(self._url(), self._text(), month) for _ in range(draw.randrange(10))]
        crawled = [row for row in self.seen if row["warc_file"]]
        for old in draw.sample(crawled, min(len(crawled), draw.randrange(7))):
            again = self._capture(old["url"], draw.choice([old["text"], old["text"], self._text()]), month)
            # Half of the time the same bytes and therefore the same id: a page that returns to an earlier text.
            found.append({**old, "fetched_at": again["fetched_at"]} if draw.random() < 0.4 else again)
        for _ in range(draw.randrange(3)):
            url = f"https://files.local/{draw.randrange(5)}"
            self.files.pop(url, None)
            if draw.random() < 0.8:
                self.files[url] = self._row(url, self._text(), None, source="code", warc_file="", poor=False)
        found += self.files.values()
        found = list({row["id"]: row for row in found}.values()) or [self._capture("https://z.org/", "z y x", month)]
        draw.shuffle(found)
        self.seen += found
        return found

    def takedowns(self, before: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Adds some of the seen values, or removes one."""
        draw, stones = self.draw, set(before)
        if stones and draw.random() < 0.3:
            stones.remove(draw.choice(sorted(stones)))
        for row in draw.sample(self.seen, min(len(self.seen), draw.randrange(3))):
            kinds = [(DOCUMENT, row["id"]), (DOCUMENT, row["id"]), (URL, f"https://{page(row)}"), (DOMAIN, row["host"])]
            stones.add(draw.choice(kinds if row["warc_file"] else kinds[:1]))
        return stones

    def _url(self) -> str:
        scheme, www = self.draw.choice(["https", "https", "http"]), self.draw.choice(["", "", "www."])
        return f"{scheme}://{www}{self.draw.choice('abcd')}.org/{self.draw.randrange(6)}"

    def _text(self) -> str:
        draw, topic = self.draw, self.draw.randrange(self.topics)
        split = [f"w{topic}x{place}" for place in range(40)]
        for place in draw.sample(range(40), draw.choice([0, 0, 1, 1, 2])):
            split[place] = f"e{place}x{draw.randrange(2)}"
        text = " ".join(split)
        return draw.choice([text, text, text, text.upper() + " !", draw.choice(ODD)])

    def _capture(self, url: str, text: str, month: datetime) -> dict[str, Any]:
        day = month + timedelta(days=self.draw.randrange(3))
        when = day if self.draw.random() < 0.95 else None
        return self._row(url, text, when, warc_file="a.warc.gz", poor=self.draw.random() < 0.1)

    def _row(self, url: str, text: str, when: datetime | None, **more: Any) -> dict[str, Any]:
        payload = digest128(f"{text} {self.draw.randrange(1000)}")
        score = self.draw.choice([0.1, 0.5, 0.5, 0.9])
        row = document(text, url=url, host=url.split("/")[2].removeprefix("www."), fetched_at=when, prose_score=score)
        return {**row, "id": document_id(url, payload), "payload_digest": payload, **more}


def covering(stones: set[tuple[str, str]]) -> Callable[[dict[str, Any]], bool]:
    return lambda row: (
        not stones.isdisjoint({(DOCUMENT, row["id"]), (URL, f"https://{page(row)}"), (DOMAIN, row["host"])})
    )


@settings(max_examples=settings.default.max_examples // 40)
@given(
    st.integers(0, 2**32), st.sampled_from(["first", "quality"]), st.sampled_from(["newest", "newest", "all"]),
    st.sampled_from([(True, True)] * 4 + [(True, False), (False, True), (False, False)]), st.sampled_from([2, 3, 99]),
)  # fmt: skip
def test_random_versions_and_their_index_follow_the_documentation(
    seed: int, prefer: str, pages: str, compared: tuple[bool, bool], merge: int
) -> None:
    exact, near = compared
    options: Any = {"prefer": prefer, "pages": pages, "exact": exact, "near": near}
    web, oracle, stones = Web(seed), Oracle(**options), set[tuple[str, str]]()
    config = DedupConfig(minhash=SURE, pairs_per_part=25, records_per_bucket=300, **options)
    with tempfile.TemporaryDirectory() as folder, _without_pictures():
        made = Cycles(Path(folder), config, merge=merge)
        for version in range(5):
            rows, stones = web.rows(version), web.takedowns(stones)
            made.in_force(sorted(stones))
            expected = oracle.run(rows, covering(stones))
            if not expected.kept:  # a version that publishes nothing is refused
                with pytest.raises(InputError, match=r"is left \("):
                    made.run(rows)
                return
            made.run(rows, web.draw.choice([1, 2, 3]))
            assert made.returned() == sorted(expected.returned)
            assert made.kept() == sorted(expected.kept)
            reasons = {name: (f"duplicate_{kind}", by) for name, (kind, by) in expected.rejected.items()}
            assert {name: why for name, why in made.rejected().items() if why[0].startswith("dup")} == reasons
            assert made.replaced() == {
                name: (f"duplicate_{kind}", by) for name, (kind, by) in expected.replaced.items()
            }
            assert made.published() == sorted(oracle.published)
            assert made.copies() == sorted(((name, one.keeper) for name, one in oracle.gone.items()), key=str)


@contextmanager
def _without_pictures() -> Iterator[None]:
    """Skips the two figures: they take most of the time of such a small version."""
    nothing: Any = {"draw": lambda *_: b""}
    with patch.multiple(DEDUP, **nothing), patch.multiple(CONSOLIDATE, **nothing):
        yield
