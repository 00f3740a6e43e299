"""Contract of tasks.formats.web.html_tags: the same tags as a sequential pass over a page."""

import random
import re

import pytest

from tasks.formats.web.html_tags import FORMATTING, TagFinder, all_tags

NAMES = TagFinder({begin: number for number, begin in enumerate((*FORMATTING, b"opt", b"bod"), 1)})
TAG = re.compile(rb"<(/?)((?:[abisu]|tt|em)(?=[\t\n\f\r />])|big|cod|fon|nob|sma|str|opt|bod)", re.I)


def found(source: bytes) -> list[tuple[int, bool, bytes]]:
    tags = all_tags(source)
    which, kinds = NAMES.find(source, tags)
    names = (*FORMATTING, b"opt", b"bod")
    return [(int(tags.at[one]), bool(tags.ends[one]), names[kind - 1]) for one, kind in zip(which, kinds, strict=True)]


def one_by_one(source: bytes) -> list[tuple[int, bool, bytes]]:
    """The same with a regular expression, except for tags that start in the last four bytes."""
    matches = [match for match in TAG.finditer(source) if match.start() < len(source) - 4]
    return [(match.start(2), bool(match[1]), match[2].lower()) for match in matches]


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"<",
        b"<b>",
        b"x<b>y   ",
        b"</b>    ",
        b"<<b><<</b></",
        b"<b/><B\x0c<i\0><em<tt\v>",
        b"<strongest><code><small/",
    ],
)
def test_tags_are_found_in_truncated_pages(source: bytes) -> None:
    assert found(source) == one_by_one(source)


def test_exactly_the_tags_of_a_name_are_found() -> None:
    chance = random.Random(4)
    names = [
        b"a",
        b"b",
        b"i",
        b"s",
        b"u",
        b"tt",
        b"em",
        b"big",
        b"code",
        b"font",
        b"nobr",
        b"small",
        b"strike",
        b"strong",
    ]
    names += [
        b"option",
        b"body",
        b"aside",
        b"br",
        b"col",
        b"embed",
        b"form",
        b"img",
        b"style",
        b"script",
        b"ul",
        b"th",
        b"p",
    ]
    for _ in range(200):
        pieces = []
        for _ in range(chance.randrange(30)):
            name = bytes(chance.choice([letter, letter ^ 32]) for letter in chance.choice(names))
            pieces.append(
                chance.choice([b"<", b"</", b"< ", b"x"]) + name + chance.choice(b" >/\t\n\f\r\v<x\0=").to_bytes()
            )
        source = b"".join(pieces)
        assert found(source) == one_by_one(source)
        assert all_tags(source + b"    ").starts == source.count(b"<") - source.count(b"</")
