"""Tokenizer for English: splits a chunk without white space into words and punctuation marks.

The rules and lists are those of spaCy's tokenizer for English, which datatrove's filters use: affixes are split off at
both ends (`tokenize_by_rules`), then the rest is split at hyphens, periods between sentences and so on
(`split_infixes`); contractions, abbreviations and emoticons are in a table (`specials`). `benchmarks/refine` compares
the resulting verdicts.

If the word is not in the table, as in nine chunks of ten, all marks around it are split off at once; otherwise the
rules are applied mark by mark. Both ways give the same tokens.

Differences from spaCy: the end marks of Tibetan, Burmese and Khmer are split off; letters are those of Unicode where
spaCy lists scripts, and URLs are matched by a simpler pattern. In 53 MB of English text from eleven domains, one chunk
in 80,000 is split differently.
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
# Contractions that are other words without their apostrophe.
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
# Marks at the end of a sentence or clause of Tibetan, Burmese and Khmer, which spaCy leaves to tokenizers of their own.
_OF_UNSPACED = "།༎༏༐༑༔၊။។៕៖៚"
FIRST = frozenset("§%=—–" + _PUNCT + QUOTES + _CURRENCY)
LAST = frozenset("—–" + _PUNCT + QUOTES + _OF_UNSPACED)
_DOTS = re.compile(r"\.\.+")
_DOTS_END = re.compile(r"\.\.+\Z")
_UNIT_END = re.compile(
    r"(?<=[0-9])(?:" + "|".join(re.escape(unit) for unit in (*_DOLLARS, *_CURRENCY, *_UNITS.split())) + r")\Z"
)
_UNIT_LAST = frozenset(unit[-1] for unit in (*_UNITS, *_CURRENCY))
_POSSESSIVE = ("'s", "'S", "’s", "’S")
# Maximum number of marks that are joined again: the longest emoticon.
_LONGEST = 5

# Splitting off a mark copies the rest, so longer chunks, which are not words, are not split.
_LONGEST_CHUNK = 1000
# Marks that are split off in any context. A period is split off after most words.
_BEFORE = "".join(sorted(FIRST))
_BEHIND = "".join(sorted(LAST)) + "."
# Any word that is not in the table.
_WORD = "word"


def tokenize(chunk: str) -> list[str]:
    """Returns the words and punctuation marks of a chunk without white space; their concatenation is the chunk.

    A chunk of more than 1,000 characters is one token.

    >>> tokenize("(don't")
    ['(', 'do', "n't"]
    >>> tokenize("well-known,")
    ['well', '-', 'known', ',']
    """
    if len(chunk) > _LONGEST_CHUNK:
        return [chunk]
    if chunk.isalpha():
        return specials().get(chunk) or [chunk]
    rest = chunk.lstrip(_BEFORE)
    core = rest.rstrip(_BEHIND)
    if core in _special_cores():
        return _special(chunk, core)
    tokens = [core] if core.isalpha() else _core(core, chunk)
    if tokens and len(rest) < len(chunk):
        before = _marks_before(chunk[: -len(rest)])
        tokens = None if before is None else before + tokens
    if tokens and len(core) < len(rest):
        marks = rest[len(core) :]
        independent = marks[0] != "." or marks[:2] == ".." or ends_sentence(core + ".")
        after = _marks_behind(marks) if independent else None
        tokens = None if after is None else tokens + after
    return tokens or tokenize_by_rules(chunk)


def _core(core: str, chunk: str) -> list[str] | None:
    """Returns the tokens of a word without the marks around it, or None if the full rules are needed.

    Args:
        core: the word; not in `_special_cores`, without a mark of `_BEFORE` before it and of `_BEHIND` after it.
        chunk: the chunk that contains it.
    """
    if prefix_length(core) or suffix_length(core):
        return None
    tokens = split_infixes(core)
    if len(tokens) == 1 or (core == chunk and first_tokens().isdisjoint(tokens)):
        return tokens
    heads, tails = _special_edges()
    # Otherwise tokens of the core, or one of them and an adjacent mark, may have to be joined.
    final = tokens[0].rstrip(_BEHIND) not in heads and tokens[-1].lstrip(_BEFORE) not in tails
    return tokens if final and first_tokens().isdisjoint(tokens) else None


def _special(chunk: str, core: str) -> list[str]:
    """Returns the tokens of a chunk whose core is in `_special_cores`."""
    table, word, mark = specials(), chunk[:-1], chunk[-1]
    if (
        word.isalpha()
        and word in table
        and chunk not in table
        and (mark in LAST or (mark == "." and word[-1].islower()))
    ):
        # "Wed." is "we'd" and a period, which are not joined to "d.".
        return [*table[word], mark]
    return tokenize_by_rules(chunk)


@cache
def _special_cores() -> frozenset[str]:
    """Returns the entries of the table without the marks around them, including "".

    A chunk with another core is not in the table, regardless of how many of its marks are removed.
    """
    return frozenset(("", *(entry.lstrip(_BEFORE).rstrip(_BEHIND) for entry in specials())))


@cache
def _special_edges() -> tuple[frozenset[str], frozenset[str]]:
    """Returns all prefixes and suffixes of `_special_cores`, including "": next to a mark, each may be part of one."""
    cores = _special_cores()
    heads = frozenset(core[:end] for core in cores for end in range(len(core) + 1))
    return heads, frozenset(core[start:] for core in cores for start in range(len(core) + 1))


@lru_cache(maxsize=4096)
def _marks_before(marks: str) -> list[str] | None:
    """Returns the tokens of marks before a word, or None if they depend on the word."""
    *tokens, word = tokenize_by_rules(marks + _WORD)
    return tokens if word == _WORD else None


@lru_cache(maxsize=4096)
def _marks_behind(marks: str) -> list[str] | None:
    """Returns the tokens of marks after a word, or None if they depend on the word."""
    word, *tokens = tokenize_by_rules(_WORD + marks)
    return tokens if word == _WORD else None


def tokenize_by_rules(chunk: str) -> list[str]:
    """Returns the tokens of a chunk by spaCy's rules, in order."""
    return _joined(_affixes(chunk, specials()))


def _affixes(chunk: str, exceptions: Mapping[str, list[str]]) -> list[str]:
    leading: list[str] = []
    trailing: list[str] = []
    while chunk and chunk not in exceptions:
        unchanged = chunk
        head = prefix_length(chunk)
        if head and chunk[head:] in exceptions:
            leading.append(chunk[:head])
            chunk = chunk[head:]
            break
        tail = suffix_length(chunk[head:])
        if tail and chunk[:-tail] in exceptions:
            trailing.append(chunk[-tail:])
            chunk = chunk[:-tail]
            break
        if head:
            leading.append(chunk[:head])
            chunk = chunk[head:]
        if tail:
            trailing.append(chunk[-tail:])
            chunk = chunk[:-tail]
        if chunk == unchanged:
            break
    if chunk:
        leading += exceptions.get(chunk) or split_infixes(chunk)
    return [*leading, *reversed(trailing)] if trailing else leading


@cache
def first_tokens() -> frozenset[str]:
    """Returns the first tokens of those special cases that the rules would split."""
    split = (_affixes(entry, {}) for entry in specials())
    return frozenset(parts[0] for parts in split if len(parts) > 1)


def _joined(tokens: list[str]) -> list[str]:
    """Joins adjacent marks that form a special case, such as "):"."""
    exceptions, starts, index = specials(), first_tokens(), 0
    if starts.isdisjoint(tokens):
        return tokens
    while index < len(tokens) - 1:
        if tokens[index] not in starts:
            index += 1
            continue
        for width in range(min(_LONGEST, len(tokens) - index), 1, -1):
            replacement = exceptions.get("".join(tokens[index : index + width]))
            if replacement:
                tokens[index : index + width] = replacement
                index += len(replacement) - 1
                break
        index += 1
    return tokens


def prefix_length(chunk: str) -> int:
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


def suffix_length(chunk: str) -> int:
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
    """Returns whether the period at the end is a token of its own and not part of an abbreviation."""
    before = chunk[-2:-1]
    if not before:
        return False
    if before.isalpha():
        if not before.isupper():
            return True
        another = chunk[-3:-2]
        return (another.isalpha() and not another.islower()) or (another == "°" and before in "FCK")
    return before in "0123456789%²-+" or before in LAST


def split_infixes(chunk: str) -> list[str]:
    """Returns the tokens of a chunk without surrounding marks, in order."""
    if chunk.isalnum():
        return [chunk]
    # Tokens and separators alternate.
    tokens: list[str] = _infixes(_level(chunk)).split(chunk)
    if not tokens[0] and len(tokens) > 1:
        # A separator at the beginning is not split off.
        tokens[:3] = ["".join(tokens[:3])]
    if len(tokens) == 1:
        return tokens
    address = _ADDRESS.match(chunk) if "." in chunk else None
    return [chunk] if address and address[1].islower() else [token for token in tokens if token]


def _level(chunk: str) -> int:
    """Returns the highest code point that `_infixes` must support for a chunk."""
    if chunk.isascii():
        return 0x7F
    return 0x10FFFF if _ASTRAL.search(chunk) else 0xFFFF


@cache
def symbols() -> frozenset[str]:
    """Returns dingbats, emoji and other characters of Unicode's category So."""
    # None is above the emoji, and checking all code points would take half a second.
    return frozenset(chr(point) for point in range(0x80, 0x20000) if unicodedata.category(chr(point)) == "So")


@cache
def _infixes(level: int) -> re.Pattern[str]:
    """Returns the pattern at which a chunk of code points up to `level` is split inside.

    A match begins with a character class, so that `re` does not try the alternatives at each position. A class with
    code points above 0xFFFF is slower, because `re` checks its ranges one by one.
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
    """Returns characters as the body of a regular-expression class, with consecutive ones as ranges."""
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
    """Returns the tokens of every special case: contractions, abbreviations, emoticons and hours."""
    table: dict[str, list[str]] = {}
    for words, endings in _CONTRACTIONS:
        for word in words.split():
            for ending in endings.split("|"):
                _add(table, [word, *ending.split()])
    for word in _WORDS_OF_THEIR_OWN.split():
        table.pop(word, None)
    table |= {entry: [entry] for entry in (*_WHOLE.split(), *_FACES.split())}
    hours = [(str(hour), half) for hour in range(1, 13) for half in ("am", "pm", "a.m.", "p.m.")]
    return table | {hour + half: [hour, half] for hour, half in hours}


def _add(table: dict[str, list[str]], parts: list[str]) -> None:
    """Adds the spellings of a contraction: capitalized, with a typographical apostrophe, and without an apostrophe."""
    first, *rest = parts
    for start in (first, first[0].upper() + first[1:]):
        for mark in ("'", "’"):
            tokens = [part.replace("'", mark) for part in (start, *rest)]
            table["".join(tokens)] = tokens
        unmarked = [part.replace("'", "") for part in (start, *rest)]
        table.setdefault("".join(unmarked), unmarked)
