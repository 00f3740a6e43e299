"""Pages of kinds that sets of articles lack: news in many languages, forums, recipes, manuals.

Reads `pages.jsonl.zst`, one page a line: `kind`, `lang`, `host`, `url`, `html`, and the text that a reader wants. That
is `gold`, the whole main text (for forums all posts), or for recipes the list `instructions` and the list
`ingredients`, because nobody has marked the story around them.

Pages with a whole text are scored by bags of words, since the gold of templates and of posts does not have the layout
of the page. A recipe is scored by the share of its steps, and of its ingredients, whose words the text has in a row.
Scripts without spaces between words are compared by characters.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import json_lines

# Thai, Lao, Burmese, Khmer, kana, Han: scripts that do not separate words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_OTHER_SCRIPTS = frozenset(("ar", "he", "ja", "ko", "ru", "uk", "zh"))
_PARTS = {"instructions": "steps", "ingredients": "ingredients"}


@dataclass(frozen=True)
class KindPage:
    """A page of one kind.

    Attributes:
        kind: group of pages for which figures are stated, such as "news, other scripts" or "docs/sphinx".
        host: of the page, or the name of the manual that it is from.
        gold: whole main text; "" for recipes.
        parts: for recipes the steps and the ingredients, as lists by these names.
    """

    kind: str
    url: str
    html: str
    host: str
    gold: str
    parts: dict[str, tuple[str, ...]]


def read_kinds(folder: Path) -> list[KindPage]:
    """Reads the pages of a folder, in its order."""
    found = []
    for row in json_lines(folder / "pages.jsonl.zst"):
        parts = {name: tuple(row[field]) for field, name in _PARTS.items() if row.get(field)}
        kind = _kind(row["kind"], row["lang"])
        # The hosts of one set are invented: kind, dash, name of the site.
        host = row["host"].removeprefix(f"{row['kind']}-")
        found.append(KindPage(kind, row["url"], row["html"], host, row.get("gold") or "", parts))
    return found


def _kind(kind: str, language: str) -> str:
    if kind != "news":
        return kind
    return "news, other scripts" if language in _OTHER_SCRIPTS else "news, Latin script"


def words_of(text: str) -> list[str]:
    """Returns the words of a text, and the characters of scripts that do not separate words.

    >>> words_of("Der Hafen: 港は静か")
    ['Der', 'Hafen', '港', 'は', '静', 'か']
    """
    return _WORD.findall(text)


def bag_shares(page: KindPage, text: str) -> tuple[float, float]:
    """Returns precision and recall of the words of a text, each word as often as it occurs."""
    found, expected = Counter(words_of(text)), Counter(words_of(page.gold))
    common = (found & expected).total()
    return common / max(1, found.total()), common / max(1, expected.total())


def found_share(items: Sequence[str], text: str) -> float:
    """Returns the share of items whose words, in a row and regardless of case, are in the text."""
    held = _joined(text)
    wanted = [joined for item in items if (joined := _joined(item)) != "  "]
    return sum(item in held for item in wanted) / max(1, len(wanted))


def _joined(text: str) -> str:
    return f" {' '.join(words_of(text.lower()))} "
