"""Contract of tasks.formats.web.robots_tag: directives of headers and meta elements, equal for crawl and extract."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.robots_tag import Directives, directives

NOW = datetime(2026, 11, 22, tzinfo=UTC)
BOTH = Directives(noindex=True, nofollow=True)
NOINDEX = Directives(noindex=True)
NOTHING = Directives()


def header(*values: str, agent: str = "sluice") -> Directives:
    return directives(values, agent, NOW)


def meta(*values: str) -> Directives:
    return directives(values, "sluice", NOW, names=False)


@pytest.mark.parametrize(
    "text",
    ["noindex,nofollow", "noindex nofollow", "noindex;nofollow", " NoIndex ;\tNOFOLLOW", "none", "noindex\nnofollow"],
)
def test_words_are_separated_by_commas_semicolons_or_blanks(text: str) -> None:
    assert header(text) == meta(text) == BOTH


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("otherbot: noindex, nofollow", NOTHING),
        ("otherbot: noindex; nofollow", NOTHING),
        ("otherbot: noindex nofollow", NOTHING),
        ("otherbot:noindex, sluice: nofollow", Directives(nofollow=True)),
        ("noindex otherbot: nofollow", NOINDEX),
        ("*: noindex", NOINDEX),
        ("otherbot: noindex, *: nofollow", Directives(nofollow=True)),
        ("Sluice: unavailable_after: 2020-01-01", NOINDEX),
        ("otherbot: unavailable_after: 2020-01-01", NOTHING),
        ("otherbot: unavailable_after: 01 Jan 2020 10:00:00 GMT, noindex", NOTHING),
    ],
)
def test_a_header_can_name_its_crawlers(text: str, expected: Directives) -> None:
    assert header(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max-image-preview: none", NOTHING),
        ("max-image-preview:none, noindex", NOINDEX),
        ("max-snippet:-1 noindex", NOINDEX),
        ("max-snippet: -1; max-video-preview: -1; nofollow", Directives(nofollow=True)),
        ("unavailable_after: Wednesday, 25 Nov 2020 15:00:00 GMT", NOINDEX),
        ("unavailable_after: 25-Nov-2020 15:00:00 EST", NOINDEX),
        ("unavailable_after: 2030-01-01, noarchive", Directives(noarchive=True)),
        ("unavailable_after: 2030-01-01 noindex", NOINDEX),
        ("unavailable_after: whenever", NOTHING),
        ("revisit-after: 7 days", NOTHING),
        ("index, follow, all", NOTHING),
        ("noindexing unofollow", NOTHING),
    ],
)
def test_values_of_directives_are_not_directives_and_hide_none(text: str, expected: Directives) -> None:
    assert meta(text) == expected


def test_without_an_agent_name_only_general_directives_apply() -> None:
    assert header("sluice: noindex", agent="") == NOTHING
    assert header("*: noindex", agent="") == header("noindex", agent="") == NOINDEX
    assert header(": noindex", agent="") == NOINDEX


def test_the_strictest_of_several_values_applies_and_a_name_ends_with_its_header() -> None:
    assert header("otherbot: noindex", "nofollow", "noai") == Directives(nofollow=True, noai=True)


@given(st.lists(st.sampled_from(["noindex", ":", ",", ";", " ", "sluice", "*", "unavailable_after", "9999", "\0"])))
def test_any_text_is_parsed(parts: list[str]) -> None:
    assert header("".join(parts)).noarchive is False
    assert meta("".join(parts)).noarchive is False
