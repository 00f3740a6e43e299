"""Labels of numbers: the last one before a number, or one in brackets behind it.

"Call us about order 4155550123" contains two labels; the nearer one counts.
"""

import re

BEFORE = 48
"""Characters before a number in which its label is searched for: a short phrase, or the line above in a table."""

_AFTER = 16


class Labels:
    """Two sets of words: those that make a number personal, and those that make it something else.

    Args:
        yes: words or beginnings of words in lower case, as regular expressions without groups.
        no: the same for labels against it.
    """

    def __init__(self, yes: str, no: str) -> None:
        self._label = re.compile(rf"(?<![^\W\d_])(?:(?P<yes>{yes})|(?P<no>{no}))")

    def of(self, text: str, start: int, end: int) -> bool | None:
        """Returns True or False by the nearest label of text[start:end], or None where there is none."""
        first = _window(text, start)
        before = max(0, first - 1)  # the rest of a word that was cut is not a word
        # Lower case first: ignoring case in the expression itself costs ten times as much.
        labels = [*self._label.finditer(text[before:start].lower(), first - before)]
        found = labels[-1] if labels else None
        if found is None and text[end : end + 2].lstrip()[:1] == "(":
            found = self._label.match(text[end : end + _AFTER].lower().lstrip()[1:])
        return None if found is None else found.lastgroup == "yes"


def _window(text: str, start: int) -> int:
    """Returns where the label of a number at `start` may begin: in its line, or in the line above a bare number."""
    first = max(0, start - BEFORE)
    line = text.rfind("\n", first, start) + 1
    if not line:
        return first
    if text[line:start].strip(" \t(+"):
        return line
    above = text.rfind("\n", first, line - 1) + 1 or first
    return line if any(character.isdigit() for character in text[above:line]) else above


GOODS = (
    r"isbn|issn|ean\b|gtin|upc\b|asin\b|sku\b|part\b|parts\b|model|modell|serial|s/n|item n|product (?:code|id|n)"
    r"|artikel|batch|lot\b|barcode|patent|doi\b|pmid|pmc|arxiv|cas\b|cve\b"
)
"""Words before numbers of goods, books and papers, which may look like anything."""

OTHER_NUMBERS = (
    rf"{GOODS}|order|invoice|item|product|id\b|ids\b|uuid|ref\b|refs\b|reference|case\b|ticket|account|acct|konto\b"
    r"|rechnung|bestell|kunden|kd-?nr|auftrag|commande|facture|siret|siren|référence|pedido|factura|referencia|ordine"
    r"|fattura|codice|bestelling|factuur|fatura|cnpj|cpf|price|preis|prix|tracking|timestamp|unix|epoch|hash|sha\b|commit"
    r"|version|build|coordinates|lat\b|lon\b|latitude|longitude|vat\b|ust|iban|card|karte|carte|tarjeta|transaction"
    r"|call[ -]?(?:n(?:o\b|r\b|um)|mark|sign)|callsign|shelf ?mark|signatur\b|dewey|lccn|oclc|accession|frequenc|qth\b"
    r"|customer|company n|registration|reg\b|pp?\b|pages?\b|seiten?\b|vol\b"
)
"""Words before numbers that are not personal data: goods, orders, files, places, times."""
