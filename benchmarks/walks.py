"""The calls that a URL takes to the WARC file, a document to a shard, and a query through a trace.

    python -m benchmarks.walks

Runs the stages on some pages of the demo's site, in this process, up to a model of a few steps, and then traces a page.
A call counts as a move if a function of `tasks/` receives the subject: the URL of a page, or an object that holds it
(directly, or one level below). Another page links to the page, and its host has been asked before. Extraction runs in
this process instead of the child process of its guard. Writes `walks.json`.
"""

import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.harness import ROOT, keep, parser
from tasks.core.store import Store
from tasks.demo.site import HOSTS, SiteHost, address, load, render_site
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.trace.trace import trace
from tasks.stages.extract.guard import ExtractionGuard
from tasks.stages.extract.row import Content, Rejected

CRAWL = {"allow_loopback": True, "delay_s": 0.05, "partitions": 1, "max_pages": 40}
RECIPE: dict[str, Any] = {
    "name": "walks",
    "consolidate": {"filters": []},
    "tokenizer": {"vocab_size": 512},
    "pack": {"seq_len": 256},
    "train": {"steps": 6, "batch_size": 4, "model": {"layers": 1, "dim": 64, "heads": 4, "kv_heads": 2}},
}
PAGES = ("/", "/argparse.html", "/calendar.html", "/zipfile.html")
SUBJECT = "calendar.html"
CORPUS = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode")
MODEL = ("pack", "train")
_PRODUCT = str(ROOT / "tasks") + "/"
_MANY = 64


@dataclass
class Walk:
    """Calls that receive one of `subjects`, in order."""

    subjects: frozenset[str]
    moves: list[str] = field(default_factory=list)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Counts a call; a profile function of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PRODUCT) or code.co_name.startswith("<"):
            return
        if any(self._holds(frame.f_locals.get(name), depth=2) for name in _arguments(code)):
            self.moves.append(f"{code.co_filename.removeprefix(_PRODUCT)}:{code.co_qualname}")

    def _holds(self, value: Any, depth: int) -> bool:
        if isinstance(value, str):
            return value in self.subjects
        if depth == 0 or value is None or isinstance(value, (int, float, bytes, type)):
            return False
        if isinstance(value, (tuple, list)):
            return len(value) <= _MANY and any(self._holds(item, depth - 1) for item in value)
        return any(self._holds(item, depth - 1) for item in _fields(value))

    def figures(self) -> dict[str, Any]:
        """Returns the numbers of moves, functions and files, and the moves by function, in the order of first calls."""
        functions = Counter(self.moves)
        files = {name.partition(":")[0] for name in functions}
        return {"moves": len(self.moves), "functions": len(functions), "files": len(files), "way": dict(functions)}


def _arguments(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _fields(value: Any) -> Iterator[Any]:
    """Yields the values that the fields of a Sluice object hold; nothing for other objects and for lambdas."""
    if not type(value).__module__.startswith("tasks."):
        return
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        for name in kind.__dict__.get("__slots__") or ():
            yield getattr(value, name, None)


@contextmanager
def followed(*subjects: str) -> Iterator[Walk]:
    """Yields the walk of the subjects over the calls in the body, in all threads that it starts."""
    walk = Walk(frozenset(subjects))
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def inline(_: ExtractionGuard, calls: Sequence[Callable[[], Content]]) -> list[Content | Rejected]:
    """Extracts rows in this process: `ExtractionGuard.run` without its child, whose calls cannot be seen."""
    return [_outcome(call) for call in calls]


def _outcome(call: Callable[[], Content]) -> Content | Rejected:
    try:
        return call()
    except Rejected as rejected:
        return rejected


def main() -> None:
    """Runs the stages and prints the figures."""
    parser(__doc__).parse_args()
    ExtractionGuard.run = inline  # type: ignore[assignment,method-assign]
    with tempfile.TemporaryDirectory() as folder:
        store, seed = Store(f"{folder}/store"), serve_pages(Path(folder))
        recipe = Recipe.from_text(
            json.dumps({**RECIPE, "crawl": {**CRAWL, "seeds": [seed]}, "place": {"store": store.root}})
        )
        run(recipe, "inject", "rank")
        page = f"{seed}{SUBJECT}"
        with followed(page) as of_url:
            run(recipe, "generate", "fetch", member="p0")
        run(recipe, "render", "update", member="p0")
        run(recipe, "publish")
        with followed(page) as of_document:
            run(recipe, *CORPUS)
        run(recipe, *MODEL)
        with followed(page) as of_trace:
            trace(store, recipe.name, recipe.version, page)
        walks = {"url": of_url, "document": of_document, "trace": of_trace}
        keep("walks", {name: walk.figures() for name, walk in walks.items()})


def run(recipe: Recipe, *stages: str, member: str = "") -> None:
    """Runs stages of the recipe in this process."""
    for stage in stages:
        run_stage(recipe, stage, member=member)


def serve_pages(cache: Path) -> str:
    """Serves PAGES of the demo's site on a free port; returns the URL of the host."""
    server = SiteHost(0, {})
    host, *_ = HOSTS
    loaded = load(render_site(cache), dict.fromkeys(HOSTS, server.server_port))[host]
    server.pages = {path: loaded[path] for path in PAGES}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return address(host, server.server_port)


if __name__ == "__main__":
    main()
