"""Tokenizer for English: splits a chunk without spaces into words and punctuation marks.

The rules and lists are those of spaCy's tokenizer for English, which datatrove's filters use: affixes are split off at
both ends (`apart`), then the rest inside, at hyphens, full stops between sentences and so on (`inner`); contractions,
abbreviations and emoticons are in a table (`specials`). `benchmarks/refine` compares the resulting verdicts.

The marks around a word are split off at once where the word is in no table, which is nine chunks of ten; for the others
the rules are applied mark by mark. Both give the same pieces.

Trade-off: letters are those of Unicode where spaCy lists scripts, and URLs are recognised by a simpler pattern. On
53 MB of English text of eleven domains one chunk of 80,000 is split differently than by spaCy.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

_ALL_ENDINGS = "'ll|'ll 've|'d|'d 've"
_CONTRACTIONS = (
    ("i you he she it we they", _ALL_ENDINGS),
    ("i", "'m|'m a"),
    ("i you we they", "'ve"),
    ("you we they", "'re"),
    ("he she it", "'s"),
    ("who what when where why how there that this", "'s"),
    ("who what when where why how there these those", "'re|'ve"),
    ("who what when where why how there that this these those", _ALL_ENDINGS),
    ("ca could do does did had may might must need ought sha should wo would", "n't|n't 've"),
    ("could might must should would", "'ve"),
    ("ai are is was were have has dare", "n't"),
    ("not", "'ve"),
    ("let", "'s"),
    ("how", "'d 'y"),
    ("y'", "all"),
    ("c'm", "on"),
    ("can", "not"),
    ("gon", "na"),
    ("got", "ta"),
)
# Without their apostrophe these are other words.
_WORDS_OF_THEIR_OWN = (
    "whore Whore lets Lets cmon Cmon Ill ill Its its Hell hell Shell shell Shed shed were Were Well well"
)
_WHOLE = (
    "' '' and/or w/o 're 's 'S 'd 'em em 'll ll 'nuff nuff 'bout 'cause 'Cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz ‘s ‘S ’em "
    "’re ’d ’ll ’bout ’cause ’Cause ’nuff ma'am Ma'am o'clock O'clock ma’am Ma’am o’clock O’clock "
    "doin' Doin' goin' Goin' lovin' Lovin' havin' Havin' nothin' Nothin' somethin' Somethin' nuthin' Nuthin' ol' Ol' "
    "doin’ Doin’ goin’ Goin’ lovin’ Lovin’ havin’ Havin’ nothin’ Nothin’ somethin’ Somethin’ nuthin’ Nuthin’ ol’ Ol’ "
    "Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. "
    "Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. "
    "Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. a.m. p.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. "
    "Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. C++ "
    'a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. p. q. r. s. t. u. v. w. x. y. z. ä. ö. ü. \\t \\n \\") <space>'
)
_FACES = (
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( "
    ":-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 :() "
    ">:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. "
    ";_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) "
    "(-_-) (._.) (>_<) (*_*) (¬_¬) ><(((*>"
)

QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_ADDRESS = re.compile(
    r"(?:[\w+\-.]{2,64}://)?(?:[^\s@]{1,256}@)?(?:[^\W_][\w\-]{0,62}\.){1,20}([^\W\d_]{2,63})(?::\d{2,5})?(?:[/?#]\S*)?\Z"
)
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")

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


def inner(chunk: str) -> list[str]:
    """Returns the pieces of a chunk without the marks around it, in order."""
    if chunk.isalnum():
        return [chunk]
    # Pieces and separators alternate.
    found: list[str] = _infixes(_level(chunk)).split(chunk)
    if not found[0] and len(found) > 1:
        # Nothing is split off at the beginning.
        found[:3] = ["".join(found[:3])]
    if len(found) == 1:
        return found
    address = _ADDRESS.match(chunk) if "." in chunk else None
    return [chunk] if address and address[1].islower() else [piece for piece in found if piece]


def _level(chunk: str) -> int:
    """Returns the highest code point that `_infixes` must support for a chunk."""
    if chunk.isascii():
        return 0x7F
    return 0x10FFFF if _ASTRAL.search(chunk) else 0xFFFF


@cache
def symbols() -> frozenset[str]:
    """Returns dingbats, emoji and their like: Unicode's category So."""
    # There are none above the emoji; checking all code points would take half a second.
    return frozenset(chr(point) for point in range(0x80, 0x20000) if unicodedata.category(chr(point)) == "So")


@cache
def _infixes(level: int) -> re.Pattern[str]:
    """Returns the pattern at which a chunk of code points up to `level` is split inside.

    A match begins with a class of characters, for which `re` searches without trying the alternatives at each place.
    The narrower that class, the faster: in one with code points above 0xFFFF `re` checks one range after the other.
    """
    letter, quotes = r"[^\W\d_]", "".join(map(re.escape, QUOTES))
    body = _class_body(char for char in symbols() if char <= chr(level))
    upper, lower = ("A-Z", "a-z") if level == 0x7F else _cased()
    alone = f"…{body}"
    return re.compile(
        rf"([{alone}.+\-*^,–—~:<>=/](?:"
        rf"(?<=\.)\.+|(?<=[{alone}])"
        rf"|(?<=[0-9][+\-*^])(?=[0-9-])"
        rf"|(?<=[{lower}{quotes}]\.)(?=[{upper}{quotes}])"
        rf"|(?<={letter},)(?={letter})"
        rf"|(?:(?<={letter}[:<>=/~–—\-])|(?<=[0-9][:<>=/~–—\-]))"
        rf"(?:(?<=-)-|(?<=-)--|(?<=—)—|)(?={letter})))"
    )


def _class_body(chars: Iterable[str]) -> str:
    """Returns characters as the body of a regular expression's class, neighbours as ranges."""
    runs: list[list[int]] = []
    for point in sorted(map(ord, chars)):
        if runs and point == runs[-1][1] + 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


@cache
def _cased() -> tuple[str, str]:
    """Returns regular-expression class bodies of upper-case and of lower-case letters; uncased letters are in both."""
    upper, lower = [], []
    for point in range(0x3000):
        char = chr(point)
        if char.isalpha():
            if not char.islower():
                upper.append(char)
            if not char.isupper():
                lower.append(char)
    return "".join(upper), "".join(lower)


@cache
def specials() -> dict[str, list[str]]:
    """Returns the tokens of every exception."""
    table: dict[str, list[str]] = {}
    for words, endings in _CONTRACTIONS:
        for word in words.split():
            for ending in endings.split("|"):
                _add(table, [word, *ending.split()])
    for word in _WORDS_OF_THEIR_OWN.split():
        table.pop(word, None)
    table |= {one: [one] for one in (*_WHOLE.split(), *_FACES.split())}
    hours = [(str(hour), half) for hour in range(1, 13) for half in ("am", "pm", "a.m.", "p.m.")]
    return table | {hour + half: [hour, half] for hour, half in hours}


def _add(table: dict[str, list[str]], parts: list[str]) -> None:
    """Adds a contraction as it is written: with a capital, with a typographical apostrophe, and with none."""
    first, *rest = parts
    for begin in (first, first[0].upper() + first[1:]):
        for mark in ("'", "’"):
            written = [part.replace("'", mark) for part in (begin, *rest)]
            table["".join(written)] = written
        bare = [part.replace("'", "") for part in (begin, *rest)]
        table.setdefault("".join(bare), bare)
