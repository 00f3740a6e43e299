"""Tokenizer for English: splits a chunk without spaces into words and punctuation marks.

The rules are those of spaCy's tokenizer for English, which datatrove's filters use: affixes taken off from both ends
(`affixes`), then splits inside (`infixes`), contractions by a table (`contractions`). `benchmarks/refine` compares the
resulting verdicts.

The marks around a word are split off at once where the word is in no table, which is nine chunks of ten; for the others
the rules are applied mark by mark. Both give the same pieces.

Trade-off: letters are those of Unicode where spaCy lists scripts, and URLs are recognised by a simpler pattern. On
53 MB of English text of eleven domains one chunk of 80,000 is split differently than by spaCy.

Tokenizer affixes: marks split off at both ends of a chunk, and those of them that are joined again.

The rules are those of spaCy's tokenizer for English.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from tasks.filters.counting.contractions import specials
from tasks.filters.counting.infixes import QUOTES, inner, symbols

_PUNCT = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
_DOLLARS = ("US$", "C$", "A$")
_UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa "
    "mbar mb MB kb KB gb GB tb TB T G M K %"
)
FIRST = frozenset("§%=—–" + _PUNCT + QUOTES + _CURRENCY)
LAST = frozenset("—–" + _PUNCT + QUOTES)
_DOTS = re.compile(r"\.\.+")
_DOTS_END = re.compile(r"\.\.+\Z")
_UNIT_END = re.compile(
    r"(?<=[0-9])(?:" + "|".join(re.escape(one) for one in (*_DOLLARS, *_CURRENCY, *_UNITS.split())) + r")\Z"
)
_UNIT_LAST = frozenset(one[-1] for one in (*_UNITS, *_CURRENCY))
_POSSESSIVE = ("'s", "'S", "’s", "’S")
# Most marks that are joined again: the longest emoticon.
_LONGEST = 5


def apart(chunk: str) -> list[str]:
    """Returns the pieces of a chunk by the rules, in order."""
    return _joined(_affixes(chunk, specials()))


def _affixes(chunk: str, special: Mapping[str, list[str]]) -> list[str]:
    first: list[str] = []
    last: list[str] = []
    while chunk and chunk not in special:
        before = chunk
        head = prefix(chunk)
        if head and chunk[head:] in special:
            first.append(chunk[:head])
            chunk = chunk[head:]
            break
        tail = suffix(chunk[head:])
        if tail and chunk[:-tail] in special:
            last.append(chunk[-tail:])
            chunk = chunk[:-tail]
            break
        if head:
            first.append(chunk[:head])
            chunk = chunk[head:]
        if tail:
            last.append(chunk[-tail:])
            chunk = chunk[:-tail]
        if chunk == before:
            break
    if chunk:
        first += special.get(chunk) or inner(chunk)
    return [*first, *reversed(last)] if last else first


@cache
def openings() -> frozenset[str]:
    """Returns the first pieces of the special cases that the rules would split."""
    taken = (_affixes(one, {}) for one in specials())
    return frozenset(parts[0] for parts in taken if len(parts) > 1)


def _joined(found: list[str]) -> list[str]:
    """Joins adjacent marks that form a special case, such as "):"."""
    special, begins, at = specials(), openings(), 0
    if begins.isdisjoint(found):
        return found
    while at < len(found) - 1:
        if found[at] not in begins:
            at += 1
            continue
        for width in range(min(_LONGEST, len(found) - at), 1, -1):
            whole = special.get("".join(found[at : at + width]))
            if whole:
                found[at : at + width] = whole
                at += len(whole) - 1
                break
        at += 1
    return found


def prefix(chunk: str) -> int:
    """Returns the length of the prefix to split off, 0 for none."""
    char = chunk[0]
    if char.isalnum():
        if char in "UCA" and chunk.startswith(_DOLLARS):
            return chunk.index("$") + 1
        return 0
    if char in FIRST or (char > "\x7f" and char in symbols()):
        return 1
    if char == "+":
        return int(not ("0" <= chunk[1:2] <= "9"))
    dots = _DOTS.match(chunk) if char == "." else None
    return len(dots[0]) if dots else 0


def suffix(chunk: str) -> int:
    """Returns the length of the suffix to split off, 0 for none."""
    if not chunk:
        return 0
    char = chunk[-1]
    if char in LAST or (char > "\x7f" and char in symbols()):
        return 1
    if char in "sS" and chunk.endswith(_POSSESSIVE):
        return 2
    if char == ".":
        if dots := _DOTS_END.search(chunk):
            return len(dots[0])
        return int(ends_sentence(chunk))
    if char == "+":
        return int("0" <= chunk[-2:-1] <= "9")
    # A unit has at most four characters.
    unit = _UNIT_END.search(chunk[-5:]) if char in _UNIT_LAST and len(chunk) > 1 else None
    return len(unit[0]) if unit else 0


def ends_sentence(chunk: str) -> bool:
    """Whether the full stop at the end is a mark of its own, not part of an abbreviation."""
    before = chunk[-2:-1]
    if not before:
        return False
    if before.isalpha():
        if not before.isupper():
            return True
        another = chunk[-3:-2]
        return (another.isalpha() and not another.islower()) or (another == "°" and before in "FCK")
    return before in "0123456789%²-+" or before in LAST


# Splitting off a mark copies the rest: a longer chunk is not a word, and is not split.
_LONGEST_STRETCH = 1000
# Marks that are split off in any context. A full stop is, behind most words.
_BEFORE = "".join(sorted(FIRST))
_BEHIND = "".join(sorted(LAST)) + "."
# Any word that is in no table.
_WORD = "word"


def pieces(chunk: str) -> list[str]:
    """Returns the words and marks of a chunk without white space, in order; joined they are the chunk.

    A chunk of more than 1,000 characters is one word.

    >>> pieces("(don't")
    ['(', 'do', "n't"]
    >>> pieces("well-known,")
    ['well', '-', 'known', ',']
    """
    if len(chunk) > _LONGEST_STRETCH:
        return [chunk]
    if chunk.isalpha():
        return specials().get(chunk) or [chunk]
    behind = chunk.lstrip(_BEFORE)
    core = behind.rstrip(_BEHIND)
    if core in _special_cores():
        return _special(chunk, core)
    found = [core] if core.isalpha() else _core(core, chunk)
    if found and len(behind) < len(chunk):
        before = _marks_before(chunk[: -len(behind)])
        found = None if before is None else before + found
    if found and len(core) < len(behind):
        marks = behind[len(core) :]
        sure = marks[0] != "." or marks[:2] == ".." or ends_sentence(core + ".")
        after = _marks_behind(marks) if sure else None
        found = None if after is None else found + after
    return found or apart(chunk)


@cache
def _special_cores() -> frozenset[str]:
    """Returns the entries of the table without the marks around them, including "".

    A chunk with another core is not in the table, however many of its marks are removed.
    """
    return frozenset(("", *(one.lstrip(_BEFORE).rstrip(_BEHIND) for one in specials())))


@cache
def _special_edges() -> tuple[frozenset[str], frozenset[str]]:
    """Returns the prefixes and suffixes of `_special_cores`, including "": beside a mark each could belong to one."""
    cores = _special_cores()
    heads = frozenset(core[:end] for core in cores for end in range(len(core) + 1))
    return heads, frozenset(core[start:] for core in cores for start in range(len(core) + 1))


def _special(chunk: str, core: str) -> list[str]:
    """Returns the pieces of a chunk with one of `_special_cores`."""
    table, word, mark = specials(), chunk[:-1], chunk[-1]
    if (
        word.isalpha()
        and word in table
        and chunk not in table
        and (mark in LAST or (mark == "." and word[-1].islower()))
    ):
        # "Wed." is read as "we'd" and a full stop, which are not joined ("d.").
        return [*table[word], mark]
    return apart(chunk)


def _core(core: str, chunk: str) -> list[str] | None:
    """Returns the pieces of a word without the marks around it, or None where the full rules are needed.

    Args:
        core: not one of `_special_cores`; begins with no mark of `_BEFORE`, and ends with none of `_BEHIND`.
        chunk: the chunk that contains it.
    """
    if prefix(core) or suffix(core):
        return None
    found = inner(core)
    if len(found) == 1 or (core == chunk and openings().isdisjoint(found)):
        return found
    heads, tails = _special_edges()
    # Pieces of the core, or one and an adjacent mark, may have to be joined.
    alone = found[0].rstrip(_BEHIND) not in heads and found[-1].lstrip(_BEFORE) not in tails
    return found if alone and openings().isdisjoint(found) else None


@lru_cache(maxsize=4096)
def _marks_before(marks: str) -> list[str] | None:
    """Returns the pieces of marks before a word, or None where they depend on the word."""
    *found, word = apart(marks + _WORD)
    return found if word == _WORD else None


@lru_cache(maxsize=4096)
def _marks_behind(marks: str) -> list[str] | None:
    """Returns the pieces of marks behind a word, or None where they depend on the word."""
    word, *found = apart(_WORD + marks)
    return found if word == _WORD else None
