"""How a stretch of text without spaces falls into words and punctuation marks.

Used by `words`. The rules are those of spaCy's tokenizer for English, which datatrove's filters use: affixes taken off
from both ends, then splits inside, contractions by a table. `benchmarks/refine` compares the verdicts that follow.

Trade-off: letters are those of Unicode where spaCy lists scripts, and addresses on the web are told by a simpler
pattern. On 53 MB of English text of eleven domains one stretch of 80,000 falls apart otherwise than with spaCy.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache

_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_PUNCT = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
_DOLLARS = ("US$", "C$", "A$")
_UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa "
    "mbar mb MB kb KB gb GB tb TB T G M K %"
).split()
_FIRST = frozenset("§%=—–" + _PUNCT + _QUOTES + _CURRENCY)
_LAST = frozenset("—–" + _PUNCT + _QUOTES)
_DOTS = re.compile(r"\.\.+")
_DOTS_END = re.compile(r"\.\.+\Z")
_UNIT_END = re.compile(r"(?<=[0-9])(?:" + "|".join(re.escape(one) for one in (*_DOLLARS, *_CURRENCY, *_UNITS)) + r")\Z")
_UNIT_LAST = frozenset(one[-1] for one in (*_UNITS, *_CURRENCY))
_POSSESSIVE = ("'s", "'S", "’s", "’S")
_ADDRESS = re.compile(
    r"(?:[\w+\-.]{2,64}://)?(?:[^\s@]{1,256}@)?(?:[^\W_][\w\-]{0,62}\.){1,20}([^\W\d_]{2,63})(?::\d{2,5})?(?:[/?#]\S*)?\Z"
)
# Without one of these nothing is split inside.
_MAYBE_INNER = re.compile("[-+*^.,~:<>=/]|[^\x00-\x7f]")
# Taking off a mark copies the rest: what is longer is no word, and is left as it is.
_LONGEST_STRETCH = 1000
# Marks that are put together again: the longest face.
_LONGEST = 5


def pieces(chunk: str) -> list[str]:
    """Returns the words and marks of a stretch without white space, in order; joined they are the stretch.

    A stretch of more than 1,000 characters is one word.

    >>> pieces("(don't")
    ['(', 'do', "n't"]
    >>> pieces("well-known,")
    ['well', '-', 'known', ',']
    """
    if len(chunk) > _LONGEST_STRETCH:
        return [chunk]
    special = _specials()
    if chunk.isalpha():
        return special.get(chunk) or [chunk]
    word, mark = chunk[:-1], chunk[-1]
    if word.isalpha() and chunk not in special and (mark in _LAST or (mark == "." and word[-1].islower())):
        return [*(special.get(word) or [word]), mark]
    return _joined(_affixes(chunk, special))


def _affixes(chunk: str, special: Mapping[str, list[str]]) -> list[str]:
    first: list[str] = []
    last: list[str] = []
    while chunk and chunk not in special:
        before = chunk
        head = _prefix(chunk)
        if head and chunk[head:] in special:
            first.append(chunk[:head])
            chunk = chunk[head:]
            break
        tail = _suffix(chunk[head:])
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
        first += special.get(chunk) or _inner(chunk)
    return [*first, *reversed(last)] if last else first


@cache
def _openings() -> frozenset[str]:
    """Returns the first piece of what is one thing although the rules would take it apart."""
    apart = (_affixes(one, {}) for one in _specials())
    return frozenset(parts[0] for parts in apart if len(parts) > 1)


def _joined(found: list[str]) -> list[str]:
    """Puts marks together that stand side by side and are one thing, as "):" is."""
    openings = _openings()
    if openings.isdisjoint(found):
        return found
    special, at = _specials(), 0
    while at < len(found) - 1:
        if found[at] not in openings:
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


def _prefix(chunk: str) -> int:
    """Returns the length of what comes off at the beginning, 0 for nothing."""
    char = chunk[0]
    if char.isalnum():
        if char in "UCA" and chunk.startswith(_DOLLARS):
            return chunk.index("$") + 1
        return 0
    if char in _FIRST or (char > "\x7f" and char in _symbols()):
        return 1
    if char == "+":
        return int(not ("0" <= chunk[1:2] <= "9"))
    dots = _DOTS.match(chunk) if char == "." else None
    return len(dots[0]) if dots else 0


def _suffix(chunk: str) -> int:
    """Returns the length of what comes off at the end, 0 for nothing."""
    if not chunk:
        return 0
    char = chunk[-1]
    if char in _LAST or (char > "\x7f" and char in _symbols()):
        return 1
    if char in "sS" and chunk.endswith(_POSSESSIVE):
        return 2
    if char == ".":
        if dots := _DOTS_END.search(chunk):
            return len(dots[0])
        return int(_ends_sentence(chunk))
    if char == "+":
        return int("0" <= chunk[-2:-1] <= "9")
    unit = _UNIT_END.search(chunk) if char in _UNIT_LAST and len(chunk) > 1 else None
    return len(unit[0]) if unit else 0


def _ends_sentence(chunk: str) -> bool:
    """Whether the full stop at the end is a mark of its own, not part of an abbreviation."""
    before = chunk[-2:-1]
    if not before:
        return False
    if before.isalpha():
        if not before.isupper():
            return True
        another = chunk[-3:-2]
        return (another.isalpha() and not another.islower()) or (another == "°" and before in "FCK")
    return before in "0123456789%²-+" or before in _LAST


def _inner(chunk: str) -> list[str]:
    if chunk.isalnum():
        return [chunk]
    address = _ADDRESS.match(chunk) if "." in chunk else None
    if address and address[1].islower():
        return [chunk]
    found, start = [], 0
    if not _MAYBE_INNER.search(chunk):
        return [chunk]
    for match in _infixes(chunk.isascii()).finditer(chunk):
        if match.start() == 0:
            continue
        if match.start() > start:
            found.append(chunk[start : match.start()])
        found.append(match[0])
        start = match.end()
    if start < len(chunk):
        found.append(chunk[start:])
    return found


@cache
def _symbols() -> frozenset[str]:
    """Returns dingbats, emoji and their like: Unicode's category So."""
    # Above the emoji there are none; looking at all code points would take half a second.
    return frozenset(chr(point) for point in range(0x80, 0x20000) if unicodedata.category(chr(point)) == "So")


@cache
def _infixes(plain: bool) -> re.Pattern[str]:
    """Returns where a stretch is split inside; `plain` is for ASCII, where it is some twenty times faster."""
    letter, dashes, quotes = r"[^\W\d_]", r"--|---|——|[-–—~]", "".join(map(re.escape, _QUOTES))
    symbols = "" if plain else f"|[{''.join(map(re.escape, sorted(_symbols())))}]"
    upper, lower = ("A-Z", "a-z") if plain else _cased()
    return re.compile(
        rf"\.\.+|…{symbols}|(?<=[0-9])[+\-*^](?=[0-9-])"
        rf"|(?<=[{lower}{quotes}])\.(?=[{upper}{quotes}])"
        rf"|(?<={letter}),(?={letter})"
        rf"|(?:(?<={letter})|(?<=[0-9]))(?:{dashes}|[:<>=/])(?={letter})"
    )


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
def _specials() -> dict[str, list[str]]:
    """Returns stretches that fall apart in a way of their own, or not at all."""
    table: dict[str, list[str]] = {}
    for words, endings in _CONTRACTIONS:
        for word in words.split():
            for ending in endings.split("|"):
                _add(table, [word, *ending.split()])
    for word in _WORDS_OF_THEIR_OWN:
        table.pop(word, None)
    table |= {one: [one] for one in (*_WHOLE, *_FACES)}
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
    "whore Whore lets Lets cmon Cmon Ill ill Its its Hell hell Shell shell Shed shed were Were Well well".split()
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
).split()
_FACES = (
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( "
    ":-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 :() "
    ">:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. "
    ";_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) "
    "(-_-) (._.) (>_<) (*_*) (¬_¬) ><(((*>"
).split()
