"""E-mail addresses in text.

Used by the stage through the catalogue; consolidation masks what it finds. Every "@" is looked at once, with a bounded
look to its left and right, so the time is linear in the text whatever it holds.
"""

import re
import string

from tasks.annotate.base import SpanFinder

_LOCAL = frozenset(string.ascii_letters + string.digits + "._%+-")
_DOMAIN = frozenset(string.ascii_letters + string.digits + ".-")
_MAX_LOCAL = 64  # RFC 5321, section 4.5.3.1.1
_MAX_DOMAIN = 255  # RFC 5321, section 4.5.3.1.2
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_TOP_LEVEL = re.compile(r"[A-Za-z]{2,63}|xn--[A-Za-z0-9-]{1,59}", re.IGNORECASE)
# "icon@2x.png" is a picture for dense screens, not somebody's address.
_FILE_ENDINGS = frozenset(("gif", "jpeg", "jpg", "png", "svg", "webp"))


class PiiEmail(SpanFinder):
    """Finds e-mail addresses as they are written in practice: ASCII, at least two domain labels, no quoted part.

    >>> PiiEmail().spans("Write to (jo.doe+web@example.co.uk).")
    [(10, 34)]
    >>> PiiEmail().spans("@property of pkg@1.2.3 and icon@2x.png, by @jo")
    []
    """

    @property
    def kind(self) -> str:
        """See `SpanFinder.kind`."""
        return "email"

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `SpanFinder.spans`."""
        found: list[tuple[int, int]] = []
        at = text.find("@")
        while at >= 0:
            start, end = _local_start(text, at), _domain_end(text, at)
            if start is not None and end is not None and (not found or start >= found[-1][1]):
                found.append((start, end))
            at = text.find("@", at + 1)
        return found


def _local_start(text: str, at: int) -> int | None:
    start = at
    while start > 0 and at - start <= _MAX_LOCAL and text[start - 1] in _LOCAL:
        start -= 1
    # Dots neither begin nor end the part, nor stand in a row (RFC 5322, dot-atom): what is before them is other text.
    start = max(start, text.rfind("..", start, at) + 2 if ".." in text[start:at] else start)
    while start < at and text[start] in ".%+-":
        start += 1
    if start == at or at - start > _MAX_LOCAL or text[at - 1] == ".":
        return None
    return start


def _domain_end(text: str, at: int) -> int | None:
    end = at + 1
    while end < len(text) and end - at <= _MAX_DOMAIN and text[end] in _DOMAIN:
        end += 1
    labels: list[str] = []
    for label in text[at + 1 : end].split("."):
        good = _LABEL.match(label)
        if not good:
            break
        labels.append(good.group())
        if good.end() < len(label):
            break
    # Take away from the right until the last label can be a top-level domain: a sentence run on, a number, a dash.
    while len(labels) >= 2 and not _TOP_LEVEL.fullmatch(labels[-1]):
        before_dash = labels.pop().partition("-")[0]
        if _TOP_LEVEL.fullmatch(before_dash):
            labels.append(before_dash)
    if len(labels) < 2 or labels[-1].lower() in _FILE_ENDINGS:
        return None
    return at + 1 + len(".".join(labels))
