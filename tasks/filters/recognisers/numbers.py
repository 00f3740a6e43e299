"""Payment card numbers.

Reads runs of digits. A number counts when its issuer's prefix, its length and its check digit agree.
Sources: ISO/IEC 7812-1 (check digit), the networks' published issuer ranges.
"""

import re
from collections.abc import Iterator

from tasks.filters.recognisers.checksum import luhn
from tasks.filters.recognisers.context import GOODS, Labels
from tasks.filters.recognisers.span import Evidence, Span

# As printed on cards: fours; American Express 4-6-5; Diners Club 4-6-4; or without gaps. What follows may be the next
# field of a line: a number of three digits, a date.
_CARD_FORM = re.compile(
    r"(?<![0-9A-Za-z_+])(?<![0-9]\.)(?<![^0-9][0-9],)(?<![0-9A-Za-z]-)(?:"
    r"[2-9][0-9]{3}(?:(?: - |[ ./-][ -]?)[0-9]{4}){3}(?P<tail>[ -]{1,2}[0-9]{1,3}(?![0-9/]))?"
    r"|3[0-9]{3}[ ./-]{1,2}[0-9]{6}[ ./-]{1,2}[0-9]{4,5}"
    r"|[2-9][0-9]{12,18}+"
    r")(?![0-9A-Za-z_]|\.[0-9])"
)
_CARD_GAPS = re.compile("[ ./-]")
_CARD_LABELS = Labels(
    r"cards?\b|visa|master ?card|amex|american express|discover|karte|kredit|carte|tarjeta|carta|pan\b|cc\b", GOODS
)
# Prefix (as a regular expression) and lengths, by network.
_CARD_ISSUERS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}(?:[0-9]{3})?"  # Discover
    r"|(?:30[0-5]|3095|36[0-9]|3[89][0-9])[0-9]{11}"  # Diners Club
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}(?:[0-9]{3})?"  # JCB
    r"|62[0-9]{14}(?:[0-9]{1,3})?"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{8,15}"  # Maestro
    r"|220[0-4][0-9]{12}(?:[0-9]{1,3})?"  # Mir
    r"|(?:508[5-9]|60[6-8][0-9]|8[12][0-9]{2})[0-9]{12}"  # RuPay
)


def find_cards(text: str, start: int, end: int) -> Iterator[Span]:
    """Yields card numbers in text[start:end].

    >>> [span[1:3] for span in find_cards("Visa 4111 1111 1111 1111, exp. 12/30", 0, 36)]
    [(5, 24)]
    """
    if end - start < 13:
        return
    at, last = start, -1
    while found := _CARD_FORM.search(text, at, end):
        at = found.start() + 4  # the next group of four may begin one, if this does not
        ends = [found.end(), found.start("tail")] if found["tail"] else [found.end()]
        stop = next((one for one in ends if _is_card(_CARD_GAPS.sub("", text[found.start() : one]))), None)
        if stop and not _is_cell(text, found.start(), stop, last):
            yield Span("card", found.start(), stop, Evidence.CHECKSUM)
            at = last = stop


def _is_card(digits: str) -> bool:
    return _CARD_ISSUERS.fullmatch(digits) is not None and luhn(digits) and len(set(digits)) > 1


def _is_cell(text: str, start: int, end: int, last: int) -> bool:
    """Returns whether groups of four follow more digits, as in a row of a table, without a card or label nearby."""
    follows = " " in text[start:end] and text[max(0, start - 2) : start][:1].isdigit() and text[start - 1] == " "
    return follows and start - last > 2 and not _CARD_LABELS.of(text, start, end)
