"""Contract of tasks.formats.web.html_tags: at least the result of a tag-by-tag count, and equal for short names."""

import random
import re
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest

from tasks.formats.web.html_tags import _MIXER, OpenElements, TagNames

FLAT = ("br", "li", "p", "option", "optgroup", "colgroup")
FORMATTING = ("b", "code", "tt")
TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)")


def tag_by_tag(source: bytes, flat: Collection[str] = FLAT, formatting: Collection[str] = FORMATTING) -> OpenElements:
    """The same numbers, from a sequential pass over the tags."""
    unclosed: Counter[str] = Counter()
    nested = formats = starts = 0
    for end, written in TAG.findall(source):
        name = written.lower().decode()
        starts += not end
        unclosed[name] = max(0, unclosed[name] + (-1 if end else 1))
        nested = max(nested, sum(count for held, count in unclosed.items() if held not in flat))
        formats = max(formats, sum(unclosed[held] for held in formatting))
    return OpenElements(nested, formats, starts)


def counted(source: bytes) -> OpenElements:
    return TagNames(source).most_open(FLAT, FORMATTING)


def has_long_names(source: bytes) -> bool:
    return any(len(name) > 8 for _, name in TAG.findall(source))


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"no tags at all",
        b"<",
        b"</",
        b"<a",
        b"</a",
        b"<a></a",
        b"<textarea",
        b"</textarea",
        b"<textarea></textarea",
        b"<1><!--><?x?><\xc3\xa9></ a>",
        b"<<a<<b>",
        b"<DIV><div></dIV>",
        b"<h1><h2></h1></h2></h2>",
        b"<b\0><b\0x></b\0>",
        b"<x-y></x-z>",
        b"<\0a><a\0>",
        b"</i></i></i><i></i><i>",
        b"</i><i></i><i></i><i><i>",
        b"<li><p><br><option><optgroup>",
        b"<code><B><tt></code></b><b>",
        b"<a\xff><a\x80></a\xff>",
        b"<a>" * 10 + b"</a>" * 5,
        b"\n".join([b"<fieldset><template></fieldset></template>"] * 3),
    ],
)
def test_names_of_up_to_eight_letters_are_counted_exactly(source: bytes) -> None:
    assert not has_long_names(source)
    assert counted(source) == tag_by_tag(source)


def test_a_page_without_tags_has_none_open() -> None:
    assert counted(b"") == counted(b"1 < 2, </>") == OpenElements(0, 0, 0)
    assert TagNames(b"").starts("a") == TagNames(b"</a>").starts("a") == 0


def test_a_truncated_source_is_accepted() -> None:
    source = b"<p><textarea></textarea><code><DIV x=<b></div></code><figcaption></figcaption>"
    for end in range(len(source) + 1):
        cut = source[:end]
        assert counted(cut) == tag_by_tag(cut) or has_long_names(cut)


@pytest.mark.parametrize("name", ["optgroupx", "colgroup1", "OPTGROUPS", "blockquote", "a" * 100_000])
def test_a_long_tag_name_counts_as_nested(name: str) -> None:
    assert counted(f"<{name}>".encode() * 7) == OpenElements(7, 0, 7)
    assert counted(f"<{name}></{name}>".encode() * 7) == OpenElements(7, 0, 7)


def test_an_end_tag_does_not_close_a_longer_name() -> None:
    assert counted(b"<fieldsetx></fieldset>" * 7) == OpenElements(7, 0, 7)
    assert counted(b"<fieldset></fieldsetx>" * 7) == OpenElements(7, 0, 7)
    assert TagNames(b"<optgroup><optgroupx><OPTGROUP></optgroup>").starts("optgroup") == 2


def colliding() -> tuple[str, str]:
    """Two names with the same hash."""
    found: dict[int, str] = {}
    chance = random.Random(2)
    while True:
        name = "".join(chance.choices("abcdefghij", k=5))
        key = np.array([int.from_bytes(name.encode(), "little")], np.uint64)
        short = int((key * _MIXER >> np.uint64(48))[0])
        if found.setdefault(short, name) != name:
            return found[short], name


def test_names_with_a_hash_collision_do_not_close_each_other() -> None:
    one, other = colliding()
    source = f"<{one}></{other}><{other}><{other}></{one}>".encode() * 50
    assert counted(source) == tag_by_tag(source)
    assert TagNames(source).starts(one) == 50
    assert TagNames(source).starts(other) == 100


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_at_least_that_of_a_tag_by_tag_count(seed: int) -> None:
    chance = random.Random(seed)
    short = ["b", "B", "code", "p", "div", "dIv", "h1", "a9b8", "x-y", "optgroup", "fieldset", "Template", *colliding()]
    long = ["optgroupx", "fieldsets", "fieldset1-x", "blockquote", "colgroup0", "z" * 40]
    for _ in range(500):
        names = chance.sample(short + long * chance.randrange(2), chance.randint(1, 6))
        closed = chance.choice([0.0, 0.3, 0.5, 0.7])
        between = chance.choice([[">"], [">", "", " ", "\0", "/>", "é", "<", "</", "\n="]])
        tags = (
            f"<{'/' * (chance.random() < closed)}{chance.choice(names)}{chance.choice(between)}"
            for _ in range(chance.choice([0, 1, 2, 10, 60]))
        )
        source = "".join(tags).encode()
        source = source[: len(source) - chance.choice([0, 0, 1, 2, 3])]
        found, least = counted(source), tag_by_tag(source)
        assert found == least or has_long_names(source), source
        assert found.nested >= least.nested
        assert found.formatting == least.formatting
        assert found.starts == least.starts


def test_groups_of_tags_are_counted_independently() -> None:
    # Each name in turn is closed far more often than opened, or opened far more often than closed.
    source = b"".join(
        (f"</n{n}>" * 90 + f"<n{n}>" * (n % 7) + f"</n{n}>" * (n % 3)).encode() * (1 + n % 2) for n in range(300)
    )
    assert counted(source) == tag_by_tag(source)
