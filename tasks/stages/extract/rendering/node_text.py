"""Reads the text of elements of one page, up to a limit for all of them.

Nested elements contain each other's text, so that the texts of n elements may be n times as long as the page.
"""

from resiliparse.parse.html import Node

_MOST_READ = 20_000_000  # characters; only a page made for it has more


class TextReader:
    """Reads the texts of elements of one page.

    Attributes:
        is_spent: whether the limit is exceeded; then every text is "".
    """

    def __init__(self) -> None:
        self.is_spent = False
        self._read = 0

    def text(self, node: Node) -> str:
        """Returns the text of an element."""
        if self.is_spent:
            return ""
        text = node.text or ""
        self._read += len(text)
        self.is_spent = self._read > _MOST_READ
        return text
