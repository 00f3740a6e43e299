r"""Pieces: the parts into which a text is split before a tokenizer merges or chooses tokens, which never cross them.

Reads and writes nothing. A split is a regular expression of Oniguruma, as `tokenizers` takes it; its matches are the
pieces, and together they are the whole text. The shapes are published:

- `gpt2`: Radford et al. 2019, "Language models are unsupervised multitask learners": a word, a run of digits or a run
  of signs, each with the space before it. A combining mark is neither letter nor digit, so a word of Hindi or Thai is
  split at each vowel sign.
- `llama3`: the shape of cl100k of OpenAI, with which Llama 3 was trained (Grattafiori et al. 2024, arXiv 2407.21783):
  a word may begin with any one sign or space, line ends are pieces, digits stand alone. Marks are letters, as in
  Qwen 3.5.
- `o200k`: the shape of OpenAI's later encoding, as tiktoken publishes it: words also end before a capital after a small
  letter, and contractions stay with the word.

Digits from the right follow Singh and Strouse 2024 (arXiv 2402.14903): 1234567 as 1 234 567.

The joiners U+200C and U+200D are neither letters nor marks: in Persian, Sinhala and older Malayalam a word has a second
piece from a joiner on. As letters they would save these languages 7 to 15 % of the pieces, but neither gigatoken nor
llama.cpp has such a split.

Time is linear in the length of the text, whatever it is: quantifiers are possessive where the published form would go
back over a run, and the one lookahead is bounded.
"""

from typing import Literal

Split = Literal["gpt2", "llama3", "o200k"]
Digits = Literal["single", "left", "right"]

GPT2_EXPRESSION = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression of `gpt2`, which the pre-tokenizer `ByteLevel` of `tokenizers` has built in."""

_FAR = 16
"""Groups of three digits that the rule for digits from the right looks ahead: up to 51 digits, and of a longer run the
last 48, are grouped from the right. Without a limit a run of n digits would take n**2 steps."""

_DIGITS: dict[Digits, str] = {
    "single": r"\p{N}",
    "left": r"\p{N}{1,3}",
    "right": rf"\p{{N}}{{1,3}}(?=(?:\p{{N}}{{3}}){{0,{_FAR}}}(?!\p{{N}}))|\p{{N}}{{3}}",
}
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
"""One space or sign before a word."""
_BLANKS = r"(?:[^\S\r\n]*+[\r\n]++)++|\s+(?!\S)|\s+"
"""Blank space: up to the last line end, up to the space that belongs to the next word, or that space alone."""
_CAPITAL, _SMALL = r"\p{Lu}\p{Lt}", r"\p{Ll}"
_EITHER = r"\p{Lm}\p{Lo}\p{M}"
"""Letters without case, and marks, which can be both in front and at the end of a word."""


def expression(split: Literal["llama3", "o200k"], digits: Digits) -> str:
    """Returns the regular expression of a split whose marks are letters."""
    if split == "llama3":
        return _like_llama3(_DIGITS[digits], marks=True, blanks=_BLANKS)
    # Capitals and then small letters; else all up to the last letter without case; else capitals.
    ending = rf"[{_CAPITAL}{_EITHER}]*+{_SMALL}[{_SMALL}{_EITHER}]*+|(?:[{_CAPITAL}]*+[{_EITHER}]++)++"
    words = rf"{_BEFORE}(?:{ending}){_CONTRACTION}?|{_BEFORE}[{_CAPITAL}]++{_CONTRACTION}?"
    return _like_o200k(words, _DIGITS[digits], _BLANKS)


def _like_llama3(digits: str, marks: bool, blanks: str) -> str:
    letters, no_signs = (r"[\p{L}\p{M}]", r"\s\p{L}\p{M}\p{N}") if marks else (r"\p{L}", r"\s\p{L}\p{N}")
    return rf"{_CONTRACTION}|{_BEFORE}{letters}+|{digits}| ?[^{no_signs}]+[\r\n]*|{blanks}"


def _like_o200k(words: str, digits: str, blanks: str) -> str:
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{blanks}"


_PUBLISHED_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_FRONT, _END = rf"[{_CAPITAL}{_EITHER}]", rf"[{_SMALL}{_EITHER}]"
_QWEN35 = _like_llama3(_DIGITS["single"], True, _PUBLISHED_BLANKS)
PUBLISHED = {
    expression("llama3", "single"): _QWEN35,
    expression("o200k", "left"): _like_o200k(
        rf"{_BEFORE}{_FRONT}*{_END}+{_CONTRACTION}?|{_BEFORE}{_FRONT}+{_END}*{_CONTRACTION}?",
        _DIGITS["left"],
        _PUBLISHED_BLANKS,
    ),
}
"""The published form of an expression, by which gigatoken knows the split. It has the same pieces, but goes back over a
run of spaces or of capitals from its end: Oniguruma gives up, and `tokenizers` ends the process, on runs of 10 M."""

IN_LLAMA_CPP = {
    _like_llama3(_DIGITS["single"], False, _PUBLISHED_BLANKS): "qwen2",
    _like_llama3(_DIGITS["left"], False, _PUBLISHED_BLANKS): "llama-bpe",
    **dict.fromkeys((expression("llama3", "single"), _QWEN35), "qwen35"),
}
"""Expressions with their names in llama.cpp, which splits by them in the same way. It also knows the shape `o200k`
("gpt-4o"), but approximates it: capitals are A to Z, and marks are signs."""
