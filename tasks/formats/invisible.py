r"""Invisible characters: removal of those that running text does not need.

Source of what is invisible: Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties.txt, version 16). Of
these, a text keeps

- the joiners U+200C and U+200D inside words of scripts in which they change a letter's form: Persian and other Arabic
  scripts, the Indic ones, Mongolian, Khmer, Tibetan and their like (The Unicode Standard, section 23.2; UAX #31, 2.3);
- the joiner U+200D between emoji, variation selectors that choose emoji or text form, and the tags of the flags of
  England, Scotland and Wales (UTS #51, sections 1.4.9 and 2.8);
- Mongolian variation selectors and separator behind a Mongolian letter, and Korean fillers, which stand for letters;
- the grapheme joiner U+034F before a combining mark, whose place it fixes.

All others are removed: soft hyphens, zero-width spaces (also between Thai or Khmer words, where they only mark a line
break), word joiners, marks and overrides of direction, invisible operators, other variation selectors, tags.
"""

import re

_TAGS = "\U000e0000-\U000e0fff"

SUSPECT = "\u00ad\u034f\u061c\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufff0-\ufffb"
"""Characters that `without` may remove, as the body of a regular expression class."""

SUSPECT_BEYOND = _TAGS
"""The same, beyond the Basic Multilingual Plane."""

# Scripts whose letters join, or form clusters that a joiner parts: Arabic to Sinhala, Tibetan, Myanmar, Khmer,
# Mongolian, Phags-pa and what follows it, Arabic presentation forms, and those of other planes.
_JOINING = (
    "\u0600-\u0dff\u0f00-\u109f\u1780-\u180a\u1810-\u18af\u1900-\u1cff\ua800-\ua82f\ua840-\ua95f\ua980-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010a5f\U00010ac0-\U00010aff\U00010d00-\U00010d3f\U00010f30-\U00010fdf"
    "\U00011000-\U00011fff\U0001e900-\U0001e95f"
)
_MONGOLIAN = "\u1800-\u180a\u1810-\u18af"
# Characters that have an emoji form (UTS #51, emoji-data.txt), by block.
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_MARKS = "\u0300-\u034e\u0350-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f"
_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{4,6}\U000e007f"

_NEVER = re.compile(
    "[\u00ad\u061c\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0d\ufff0-\ufffb"
    "\U000e0000-\U000e001f\U000e0080-\U000e0fff]"
)
_TAG = re.compile("[\U000e0020-\U000e007f]")
_TAG_OR_FLAG = re.compile(f"({_FLAG})|{_TAG.pattern}")
_SOMETIMES = re.compile("[\u034f\u180b-\u180f\u200c\u200d\ufe0e\ufe0f]")
_JOINERS = re.compile("([\u200c\u200d])[\u200c\u200d]+")
_NEEDLESS = re.compile(
    f"{_SOMETIMES.pattern}(?:"
    f"(?<=\u200c)(?:(?<![{_JOINING}]\u200c)|(?![{_JOINING}]))"
    f"|(?<=\u200d)(?<![{_JOINING}]\u200d)(?:(?<![{_EMOJI}]\u200d)(?<![{_EMOJI}]\ufe0f\u200d)|(?![{_EMOJI}]))"
    f"|(?<=[\ufe0e\ufe0f])(?<![{_EMOJI}][\ufe0e\ufe0f])(?!(?<=[0-9#*][\ufe0e\ufe0f])\u20e3)"
    f"|(?<=[\u180b-\u180f])(?<![{_MONGOLIAN}][\u180b-\u180f])"
    f"|(?<=\u034f)(?![{_MARKS}])"
    ")"
)
_FEW = 8
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    f"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a{_TAGS}]"
)


def without(text: str, seen: str) -> str:
    """Returns the text without the invisible characters that it does not need; U+FEFF is left to `tasks.formats.documents.text`.

    Args:
        text: any text.
        seen: characters of the text, at least all that are not ASCII: only these are searched for.

    >>> without("Schiff\u00adfahrt\u200b, \u202epay\u2060pal\u202c", "\u00ad\u200b\u202e\u2060\u202c")
    'Schifffahrt, paypal'
    >>> persian = "\u0645\u06cc\u200c\u0631\u0648\u0645"
    >>> without(persian, persian) == persian, without("a\u200cb", "\u200c")
    (True, 'ab')
    """
    text = _dropped(text, _NEVER, seen)
    if _SOMETIMES.search(seen):
        text = _NEEDLESS.sub("", _JOINERS.sub(r"\1", text))
    return _TAG_OR_FLAG.sub(r"\1", text) if _TAG.search(seen) else text


def ignored(text: str, seen: str) -> str:
    """Returns the text without any character that Unicode lets a reader ignore, for comparison; `seen` as above."""
    return _dropped(text, _IGNORABLE, seen)


def _dropped(text: str, characters: re.Pattern[str], seen: str) -> str:
    present = set(characters.findall(seen))
    if len(present) > _FEW:
        return characters.sub("", text)
    for character in present:  # a search for one is many times as fast as that for a set
        text = text.replace(character, "")
    return text
