"""The rules of `docs/dedup.md` for consecutive versions, in plain Python over sets. Not a test module.

Compares every document with every other one; remembers only published documents and those they replaced.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Row = dict[str, Any]
Verdict = tuple[str, str]
"""Why a document goes ("exact", "near", "page"), and the id of the one that it goes for."""


class Published(NamedTuple):
    """A document that is in the index, and the number of versions before its own."""

    row: Row
    cycle: int


class Gone(NamedTuple):
    """A dropped duplicate, its keeper (None: no longer known), and the reason."""

    row: Row
    keeper: str | None
    kind: str


class Version(NamedTuple):
    """Result of a version: ids that it keeps and that came back; verdicts on rejected and replaced documents."""

    kept: set[str]
    returned: set[str]
    rejected: dict[str, Verdict]
    replaced: dict[str, Verdict]


class _Entry(NamedTuple):
    row: Row
    cycle: int
    new: bool


def words(text: str) -> tuple[str, ...]:
    """Splits synthetic texts into words of letters and digits in any case."""
    return tuple("".join(one if one.isalnum() else " " for one in text.lower()).split())


def shingles(split: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(split[start : start + 5] for start in range(max(1, len(split) - 4))) if split else frozenset()


def page(row: Row) -> str | None:
    """Returns the page that a document is a capture of; None for one of a file."""
    return row["url"].partition("://")[2].removeprefix("www.") if row["warc_file"] else None


class Oracle:
    """The index as two dictionaries by id: published documents and dropped duplicates.

    Args:
        prefer: as `[dedup] prefer`.
        pages: as `[dedup] pages`.
        exact: as `[dedup] exact`.
        near: as `[dedup] near`.
    """

    def __init__(self, prefer: str, pages: str, *, exact: bool, near: bool) -> None:
        self.prefer, self.pages, self.exact, self.near = prefer, pages, exact, near
        self.published: dict[str, Published] = {}
        self.gone: dict[str, Gone] = {}
        self.versions = 0
        self._known: dict[str, tuple[tuple[str, ...], frozenset[tuple[str, ...]]]] = {}

    def run(self, rows: list[Row], taken: Callable[[Row], bool]) -> Version:
        """Makes one version of some documents; `taken` is true for those taken down."""
        back = self._returning({row["id"] for row in rows}, taken)
        every = {row["id"]: (row, self.versions) for row in rows} | {
            row["id"]: (row, self.versions - 1) for row in back
        }
        new = [_Entry(row, cycle, True) for row, cycle in every.values() if not taken(row) and not row["poor"]]
        held = [_Entry(one.row, one.cycle, False) for one in self.published.values() if not taken(one.row)]
        of_pages = self._older([*held, *new]) if self.pages == "newest" else {}
        verdicts = of_pages | self._copies([one for one in (*held, *new) if one.row["id"] not in of_pages])
        made = Version(
            kept={one.row["id"] for one in new} - verdicts.keys(),
            returned={row["id"] for row in back},
            rejected={one.row["id"]: verdicts[one.row["id"]] for one in new if one.row["id"] in verdicts},
            replaced={one.row["id"]: verdicts[one.row["id"]] for one in held if one.row["id"] in verdicts},
        )
        self._remember(made, every, taken)
        self.versions += 1
        return made

    def _returning(self, there: set[str], taken: Callable[[Row], bool]) -> list[Row]:
        rows = {name: one.row for held in (self.published, self.gone) for name, one in held.items()}
        known = {name for name, row in rows.items() if not taken(row)}
        free = (one.row for name, one in self.gone.items() if name in known and one.keeper not in known)
        return [row for row in free if row["id"] not in there]

    def _older(self, entries: Iterable[_Entry]) -> dict[str, Verdict]:
        """All captures of each page except the newest, or except the published one if their texts are equal."""
        pages: dict[str, list[_Entry]] = {}
        for entry in sorted(entries, key=lambda one: (-_time(one.row, -1e12), one.row["id"])):
            if (of := page(entry.row)) is not None:
                pages.setdefault(of, []).append(entry)
        found: dict[str, Verdict] = {}
        for captures in pages.values():
            newest = captures[0].row
            said = [one.row for one in captures if not one.new and self._same(one.row, newest)]
            stands = (said or [newest])[0]["id"]
            names = {one.row["id"] for one in captures} - {stands, newest["id"]}
            found |= dict.fromkeys(names, ("page", stands))
        return found

    def _copies(self, entries: list[_Entry]) -> dict[str, Verdict]:
        """In order of preference: documents equal or nearly equal to an earlier one that is kept."""
        stay: list[_Entry] = []
        found: dict[str, Verdict] = {}
        for entry in sorted(entries, key=self._preference):
            row = entry.row
            if any(one.row["id"] == row["id"] for one in stay):
                continue  # the document itself, read again
            exact = [one.row["id"] for one in stay if self._same(one.row, row)]
            near = [one.row["id"] for one in stay if (entry.new or one.new) and self._similar(one.row, row)]
            if exact:
                found[row["id"]] = ("exact", exact[0])
            elif near:
                found[row["id"]] = ("near", near[0])
            else:
                stay.append(entry)
        return found

    def _preference(self, entry: _Entry) -> tuple[Any, ...]:
        row = entry.row
        cycle = entry.cycle if self.prefer == "first" else 0
        return (cycle, -row["prose_score"], _time(row, 1e12), row["id"], entry.new)

    def _remember(self, made: Version, every: dict[str, tuple[Row, int]], taken: Callable[[Row], bool]) -> None:
        replaced = {name: Gone(self.published[name].row, by, kind) for name, (kind, by) in made.replaced.items()}
        published = {name: one for name, one in self.published.items() if name not in replaced and not taken(one.row)}
        published = {name: Published(*every[name]) for name in made.kept} | published
        gone = {name: one for name, one in self.gone.items() if name not in every and not taken(one.row)}
        went = {name: Gone(every[name][0], by, kind) for name, (kind, by) in made.rejected.items()}
        gone |= replaced | {name: one for name, one in went.items() if one.row["warc_file"] and name not in published}
        for name, one in gone.items():
            if name in replaced or name in went:
                continue
            if one.keeper in replaced:
                # An older capture was dropped for a newer one, and that one for an even newer one.
                by_page = one.kind == replaced[one.keeper].kind == "page"
                gone[name] = one._replace(keeper=replaced[one.keeper].keeper if by_page else None)
            elif one.keeper not in published and one.keeper not in gone:
                gone[name] = one._replace(keeper=None)
        self.published, self.gone = published, gone

    def _same(self, one: Row, other: Row) -> bool:
        """Whether two texts have the same words; of texts without words, whether they are equal."""
        split = self._of(one)[0]
        return self.exact and split == self._of(other)[0] and (bool(split) or one["text"] == other["text"])

    def _similar(self, one: Row, other: Row) -> bool:
        left, right = self._of(one)[1], self._of(other)[1]
        return self.near and bool(left and right) and len(left & right) >= 0.8 * len(left | right)

    def _of(self, row: Row) -> tuple[tuple[str, ...], frozenset[tuple[str, ...]]]:
        if row["text"] not in self._known:
            split = words(row["text"])
            self._known[row["text"]] = split, shingles(split)
        return self._known[row["text"]]


def _time(row: Row, unknown: float) -> float:
    return float(row["fetched_at"].timestamp()) if row["fetched_at"] else unknown
