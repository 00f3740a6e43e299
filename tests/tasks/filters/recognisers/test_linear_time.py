"""Time is linear in the length of any text: no pattern may match a run of characters in many ways.

Work is CPU time of this process relative to other text of the same length, never wall-clock time: at most twelve
times that of matching addresses, while an ambiguous pattern takes hundreds or millions of times as long.
All but a few cases are soak: run them after a change of the recognisers or of a pattern in them.
"""

import time

import pytest

from tasks.filters.recognisers.scan import find
from tests.soak import soak_but

pytestmark = pytest.mark.real_time

CHARS = 2_000
FOUND = "12 rue de la Paix, 75002 Paris; Musterstraße 5, 10115 Berlin; 123 Elm Street, Springfield, IL 62704; "
LABELLED = "tel. 030 2312512, 10 Downing Street, London SW1A 2AA, jo@example.org, SSN 123 45 6789, client 8.8.8.8; "
SHORTEST = 0.005
"""CPU seconds that nothing is expected to stay below: the grain of the clock and the noise of a busy machine."""

BEGINNINGS = {
    "address FR": "12 rue ",
    "address US": "123 ",
    "address GB": "Flat 2, 17 ",
    "address US, two houses": "1 Elm Street, 998 East 900 ",
    "address US, unit": "Suite 5, 15th Floor, ",
    "address box": "P.O. Box 123, ",
    "address DE": "",
    "address DE, type first": "Platz der ",
    "address DE, preposition": "Am ",
    "address ES": "Calle ",
    "address IT": "Via ",
    "town": "Straße 1, 12345 ",
    "town US": "1 Elm Street, ",
    "phone": "tel ",
    "phone, international": "+49 ",
    "phone, brackets": "call (415) 555-01",
    "card": "4111 ",
    "ssn": "SSN 123-",
    "iban": "DE89 3704 ",
    "ip": "client 8.8.",
    "ip v6": "2606:4700:",
    "email": "jo@",
    "label": "address ",
}
# Characters of each class that a pattern repeats, and units that end a repetition or almost do.
UNITS = (
    *"aAßé19-._ '’,:/+(@#",
    *("\n", "A-", "Aa", "Aa-", "A ", "Aa ", "a ", "A.", "Aa. ", "A'", "A’", "1 ", "1-", "1.", "12 ", "00 ", "+1 "),
    *("of ", "de ", " der ", "A de ", "Weg", "-Weg", "Weg ", "St ", "St. ", ", ", " ,", "\n ", "F:", "1:", "a.b", "a@"),
    *("SW1", "IL ", "1 Aa", "rue a ", "x_", "\n  ", "#1 ", "IL 62704 ", "NE "),
)
# Folded characters, near misses of e-mail addresses, and groups that repeatedly start a number.
FOLDED = (
    *("_", "'", "\u200b", "1\u200b", "\u00a0", "1\u00a0", "1\u2011", "\uff11", "\uff11\uff0d", "1\u2013\uff11"),
    *("tel", "tel1", "tel=1", "tel=1234567", "1234567Fax", "Fax1234567Fax", "+1\n", "+1 1\n1 ", "(123)\n1", "1-\n"),
    *("%40", "a%40", "a%40b.de", "&#64;", "wa.me/1234567 ", "wa.me/", "://", "://a:", "http://a:b@c.de:", "a://a@b.de"),
    *('"a"@', '"@', '"a"@b.de', "a@b.de(", "a@b.de:a/", "git@b.de:a", "_a@b.deTel", "a@b.detel", "..a@b.de", ".@b.de"),
    *(" at ", " dot ", " at a dot ", "a dot ", "a at a dot a ", " AT ", " AT a.b"),
    *(
        "(at)",
        "[at] ",
        "a (at) ",
        "(dot) ",
        "a (dot) ",
        "a (dot) a (at) a (dot) a ",
        "a [at] a.",
        "a[at]a.de",
        "a(dot)",
    ),
    *("+ ", "+ 1 ", "+ 44 20 ", "(0049) ", "(00", "\n+ 49 301 "),
    *("4111 ", "4111/", "4111 1111 1111 1111 123 ", "2345 6789 ", "de89", "de89 ", "de89-", "de89\n", "DE89 3704\n"),
    *(
        "198.41.0.4-",
        "<198.41.0.4>",
        "198.41.0.4/24",
        "123 45 ",
        "123.45.",
        "1 Elm Street; ",
        "1;\n\n",
        "–\n\n1 ",
        "\r\n",
    ),
)
ENDINGS = (
    " 1 12345 Aa ",
    "! 1 28001 Aa, ",
    " Straße 1 12345 Aa ",
    ", 75002 Aa_ ",
    ", IL 62704 ",
    " ON K1A 0B1 ",
    " SW1A 2A ",
    "_ ",
    ".",
)


def work(text: str) -> float:
    """Returns the CPU seconds of `find`."""
    begin = time.process_time()
    find(text)
    return time.process_time() - begin


def bounded(text: str, most: float) -> bool:
    """Returns whether `find` takes at most `most`; repeats a longer call, in case the machine was busy."""
    return any(work(text) < most for _ in range(3))


def repeated(unit: str, length: int = CHARS) -> str:
    return (unit * (length // len(unit) + 1))[:length]


@pytest.fixture(scope="module")
def ordinary() -> float:
    """CPU seconds for matching addresses and numbers; the first round warms up."""
    find(repeated(FOUND + LABELLED))
    return max(SHORTEST, work(repeated(FOUND)), work(repeated(LABELLED)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("beginning", soak_but([0], BEGINNINGS.values()), ids=BEGINNINGS)
def test_no_run_after_a_prefix_costs_much_more_than_a_match(beginning: str, ordinary: float) -> None:
    for unit in UNITS:
        for run, endings in ((repeated(unit, 54), ENDINGS), (repeated(unit, 160), ("", ENDINGS[0]))):
            for ending in endings:
                assert bounded(repeated(beginning + run + ending), 12 * ordinary), (beginning, unit, ending)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", soak_but([0], FOLDED))
@pytest.mark.parametrize("beginning", ["", "tel "])
def test_twice_the_text_takes_about_twice_the_work(unit: str, beginning: str) -> None:
    lengths = (5_000, 10_000, 20_000)
    one, two, four = (max(SHORTEST, min(work(beginning + repeated(unit, n)) for _ in range(2))) for n in lengths)
    assert two < 4 * one
    assert four < 4 * two


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", soak_but([0, 1], UNITS))
def test_four_times_the_text_takes_about_four_times_the_work(unit: str) -> None:
    beginning = " ".join(BEGINNINGS.values())
    least = max(SHORTEST, work(beginning + repeated(unit, 20_000)))
    assert bounded(beginning + repeated(unit, 80_000), 8 * least)
