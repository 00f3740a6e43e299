"""Tokenizer for English: splits a chunk without spaces into words and punctuation marks.

The rules are those of spaCy's tokenizer for English, which datatrove's filters use: affixes taken off from both ends
(`affixes`), then splits inside (`infixes`), contractions by a table (`contractions`). `benchmarks/refine` compares the
resulting verdicts.

The marks around a word are split off at once where the word is in no table, which is nine chunks of ten; for the others
the rules are applied mark by mark. Both give the same pieces.

Trade-off: letters are those of Unicode where spaCy lists scripts, and URLs are recognised by a simpler pattern. On
53 MB of English text of eleven domains one chunk of 80,000 is split differently than by spaCy.
"""

from functools import cache, lru_cache

from tasks.filters.counting.affixes import FIRST, LAST, apart, ends_sentence, openings, prefix, suffix
from tasks.filters.counting.contractions import specials
from tasks.filters.counting.infixes import inner

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
