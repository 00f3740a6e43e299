"""The lineage of a version as a graph: its artifacts in the order of the stages, and what each was made from.

Reads the records of the version's artifacts, and the reports of the newest takedowns. Artifacts of one kind, such as
the partitions of a crawl, are one box. Without a picture, the table below it has the same edges.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import Address, Version, artifact_link, badge, page
from sluice_ui.layered import HEIGHT, WIDTH, draw
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex, find_readable
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.run.catalogue import STAGES
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store

FILES = "files outside the store"

MOST_TAKEDOWNS = 50
"""Newest takedowns whose reports are read for marks."""

_LONGEST = 24
"""Characters of a line in a box."""


@dataclass
class Box:
    """A box of the graph.

    Attributes:
        name: its unique name.
        title: kind of its artifacts, or what else it stands for.
        artifacts: those of the version.
        others: ids of artifacts of other versions or recipes, or of files outside the store.
    """

    name: str
    title: str
    artifacts: list[Artifact] = field(default_factory=list)
    others: set[str] = field(default_factory=set)

    @property
    def adopted(self) -> list[str]:
        """The versions that its artifacts were adopted from, sorted."""
        return sorted({one.record.adopted_from.rpartition("@")[2] for one in self.artifacts} - {""})

    @property
    def href(self) -> str:
        """Address of its artifact; of several, the row of the table with all of them; "" for files."""
        if self.name == FILES:
            return ""
        ids = [str(one.address) for one in self.artifacts] or sorted(self.others)
        return Address(f"/artifact/{ids[0]}", {}).href() if len(ids) == 1 else "#boxes"

    @property
    def count(self) -> int:
        """Number of its artifacts or files."""
        return len(self.artifacts) or len(self.others)

    @property
    def state(self) -> str:
        """How its artifacts came into the version, in a few words."""
        if not self.artifacts:
            versions = sorted({other.rpartition("@")[2] for other in self.others}) if self.name != FILES else []
            return f"version {versions[0]}" if len(versions) == 1 else "not of this version"
        adopted = sum(bool(one.record.adopted_from) for one in self.artifacts)
        if not adopted:
            return "made"
        source = self.adopted[0] if len(self.adopted) == 1 else f"{len(self.adopted)} versions"
        return f"adopted from {source}" if adopted == self.count else f"{adopted} of {self.count} adopted"

    @property
    def look(self) -> str:
        """Class of its look: "made", "adopted" or "other"."""
        if not self.artifacts:
            return "other"
        return "adopted" if all(one.record.adopted_from for one in self.artifacts) else "made"


@dataclass(frozen=True)
class Graph:
    """Boxes in the order of the stages, with their edges.

    Attributes:
        boxes: by name, each after those that it was made from.
        edges: roles in which the target's artifacts read the source's, by (source, target).
    """

    boxes: dict[str, Box]
    edges: dict[tuple[str, str], set[str]]


def graph_of(artifacts: Iterable[Artifact], recipe: str, version: str) -> Graph:
    """Returns the graph of a version's artifacts and of their inputs."""
    boxes: dict[str, Box] = {}
    edges: dict[tuple[str, str], set[str]] = defaultdict(set)
    artifacts = list(artifacts)
    for artifact in artifacts:
        name = _kind(str(artifact.address), recipe)
        boxes.setdefault(name, Box(name, name)).artifacts.append(artifact)
    own = {str(artifact.address) for artifact in artifacts}
    for artifact in artifacts:
        target = _kind(str(artifact.address), recipe)
        for ref in artifact.record.inputs:
            if ref.address.startswith("code:"):
                continue
            if ref.address in own:
                source = _kind(ref.address, recipe)
            else:
                source, title = _other(ref.address, recipe)
                boxes.setdefault(source, Box(source, title)).others.add(ref.address)
            if source != target:
                edges[source, target].add(ref.role)
    return Graph({name: boxes[name] for name in _in_order(boxes, edges)}, dict(edges))


def _kind(address: str, recipe: str) -> str:
    """Returns the kind of an artifact without its member: "segment" for recipe/segment/p0@v1."""
    return address.partition("@")[0].removeprefix(f"{recipe}/").partition("/")[0]


def _other(address: str, recipe: str) -> tuple[str, str]:
    """Returns name and title of the box of an input that is not of the version."""
    if "@" not in address or address.startswith("external:"):
        return FILES, FILES
    own = address.startswith(f"{recipe}/")
    title = _kind(address, recipe) if own else address.partition("@")[0]
    return (f"other {title}" if title == TAKEDOWN else f"other {title}@{address.rpartition('@')[2]}"), title


def _in_order(boxes: dict[str, Box], edges: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the boxes, each after its sources, else in the order of the stages; those of a cycle come last."""
    place = {stage.output: at for at, stage in enumerate(STAGES.values())}
    sources: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        sources[target].add(source)
    left = sorted(boxes, key=lambda name: (bool(boxes[name].artifacts), place.get(boxes[name].title, len(place)), name))
    ordered: list[str] = []
    while left:
        ready = next((name for name in left if not sources[name].intersection(left)), left[0])
        left.remove(ready)
        ordered.append(ready)
    return ordered


def marks(store: Store, recipe: str, artifacts: Sequence[Artifact]) -> dict[str, int]:
    """Returns the number of documents in artifacts of a version that were taken down later, by the artifact's id.

    From the reports of the newest takedowns: an upper bound if one document was taken down twice.
    """
    addresses = {str(one.address) for one in artifacts}
    adopted = {one.record.adopted_from: str(one.address) for one in artifacts if one.record.adopted_from}
    found: dict[str, int] = defaultdict(int)
    for version in sorted(store.folders(f"{recipe}/{TAKEDOWN}"), reverse=True)[:MOST_TAKEDOWNS]:
        made = find_readable(store, ArtifactId(f"{recipe}/{TAKEDOWN}", version))
        for entry in json.loads(made.read("report.json"))["artifacts"] if made else ():
            name = entry["artifact"]
            if name in addresses or name in adopted:
                found[adopted.get(name, name)] += entry["documents"]
    return dict(found)


def drawing(graph: Graph, taken_down: dict[str, int], label: str) -> Markup:
    """Returns the graph as SVG; every box is a link."""
    drawn = draw(list(graph.boxes), graph.edges)
    width, height = drawn.size
    parts = [
        Markup(
            '<svg class="lineage" width="{0}" height="{1}" viewBox="-2 -2 {2} {3}" role="group" aria-label="{4}">'
        ).format(round(width) + 4, round(height) + 4, round(width) + 4, round(height) + 4, label)
    ]
    for edge, path in sorted(drawn.edges.items()):
        roles = ", ".join(sorted(graph.edges[edge]))
        title = f"{graph.boxes[edge[0]].title} to {graph.boxes[edge[1]].title}: {roles}"
        parts.append(Markup('<path class="edge" d="{}"><title>{}</title></path>').format(path, title))
    for name, (x, y) in drawn.boxes.items():
        parts.append(
            _box(graph.boxes[name], x, y, sum(taken_down.get(str(a.address), 0) for a in graph.boxes[name].artifacts))
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _box(box: Box, x: float, y: float, taken_down: int) -> Markup:
    title = _short(box.title, box.count)
    mark = f"; {taken_down:,} documents were taken down later" if taken_down else ""
    circle = Markup('<circle class="mark" cx="{:.1f}" cy="{:.1f}" r="6"/>').format(x + WIDTH - 12, y + 12)
    shape = Markup(
        '<g class="box {}"><title>{}</title><rect x="{:.1f}" y="{:.1f}" width="{:.0f}" height="{:.0f}" rx="6"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text><text class="small" x="{:.1f}" y="{:.1f}">{}</text>{}</g>'
    ).format(
        box.look, f"{box.title}: {box.count}, {box.state}{mark}", x, y, WIDTH, HEIGHT, x + 10, y + 18, title,
        x + 10, y + 34, _cut(box.state),
        circle if taken_down else "",
    )  # fmt: skip
    return Markup('<a href="{}">{}</a>').format(box.href, shape) if box.href else shape


def _short(title: str, count: int) -> str:
    more = f" × {count:,}" if count > 1 else ""
    return _cut(title, _LONGEST - len(more)) + more


def _cut(text: str, most: int = _LONGEST + 2) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def lineage(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page with the graph of a version; raises InputError if it has no artifacts."""
    store = open_store(recipe)
    index = VersionIndex(store, recipe.name)
    artifacts = index.artifacts(version)
    if not artifacts:
        known = ", ".join(index.versions()[:20]) or "none yet"
        raise InputError(f"{recipe.name} has no artifacts of version {version}", f"versions: {known}")
    graph, taken_down = graph_of(artifacts, recipe.name, version), marks(store, recipe.name, artifacts)
    label = f"{len(graph.boxes)} kinds of artifacts and files of {recipe.name} {version}, and {len(graph.edges)} edges"
    return page(
        "lineage",
        f"Lineage of {recipe.name} {version}",
        at,
        Version(recipe.name, version, "lineage", "crawl" in recipe.parts),
        drawing=drawing(graph, taken_down, label),
        label=label,
        taken_down=sum(taken_down.values()),
        edges=[
            [graph.boxes[source].title, graph.boxes[target].title, ", ".join(sorted(roles))]
            for (source, target), roles in graph.edges.items()
        ],
        boxes=[row for box in graph.boxes.values() for row in _rows(box, taken_down)],
    )


def _rows(box: Box, taken_down: dict[str, int]) -> Iterable[list[object]]:
    """Returns the rows of a box in the table of all artifacts."""
    for artifact in box.artifacts:
        record = artifact.record
        source = artifact_link(record.adopted_from) if record.adopted_from else ""
        how = badge("adopted", "pale") if source else badge("made", "good")
        yield [artifact_link(record.artifact), record.stage, how, source, len(record.inputs),
               taken_down.get(record.artifact)]  # fmt: skip
    for address in sorted(box.others):
        yield [artifact_link(address), "", badge("input", "pale"), "", None, None]


routes = router()


@routes.get("/lineage")
def lineage_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """The graph of a version's artifacts."""
    return respond(lambda: lineage(readable(recipe, user), version, at))
