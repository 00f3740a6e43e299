"""Draws the two pictures of the README: `python docs/draw.py` writes docs/pipeline.svg and docs/trace.svg.

Plain SVG that follows the reader's light or dark theme.
The texts are in this file.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
STYLE = """
  text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11px; fill: #59636e }
  .code { font-family: ui-monospace, monospace; font-size: 11px; fill: #59636e }
  .head { font-weight: 600 }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .strong { fill: #ddf4ff; stroke: #0969da }
  .line { stroke: #59636e; stroke-width: 1.4; fill: none; marker-end: url(#tip) }
  .tip { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small, .code { fill: #9198a1 }
    .box { fill: #161b22; stroke: #656c76 } .strong { fill: #0d2d4d; stroke: #4493f8 }
    .line { stroke: #9198a1 } .tip { fill: #9198a1 }
  }
"""
TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
DEFS = f'<defs>{TIP}<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'


@dataclass(frozen=True)
class Box:
    """A box with a heading and lines of small text; the first of `lines` may be code (class "code")."""

    x: int
    y: int
    width: int
    height: int
    head: str
    lines: tuple[str, ...] = ()
    kind: str = "box"
    style: str = "small"

    def draw(self) -> str:
        """Returns the box as SVG."""
        x, y = self.x + 10, self.y + 20
        texts = [f'<text class="head" x="{x}" y="{y}">{escape(self.head)}</text>']
        for index, line in enumerate(self.lines, 1):
            texts.append(f'<text class="{self.style}" x="{x}" y="{y + 16 * index}">{escape(line)}</text>')
        rect = (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"/>'
        )
        return rect + "".join(texts)


def arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    """Returns an arrow as SVG."""
    return f'<path class="line" d="M{x1} {y1}L{x2} {y2}"/>'


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Returns an SVG document."""
    view = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img"><title>{escape(title)}</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", DEFS, *parts, "</svg>", ""])


def pipeline() -> str:
    """Returns the five DAGs of a recipe with their stages, and the two beside them."""
    dags = (
        ("crawl", ("inject, rank", "generate[p]", "fetch[p]", "render[p]", "update[p]", "publish"), "WARC"),
        ("corpus", ("extract", "annotate", "dedup", "decontaminate", "consolidate"), "documents"),
        ("tokens", ("tokenizer", "encode", "pack", "spans, repeats"), "shards, plan"),
        ("canary", ("arms", "canary[arm, seed]", "decide", "gate"), "mixture"),
        ("pretrain", ("estimate", "train", "evaluate", "register", "promote"), "checkpoint"),
    )
    parts, width, gap, top = [], 150, 38, 44
    for index, (name, stages, asset) in enumerate(dags):
        x = 10 + index * (width + gap)
        parts.append(Box(x, top, width, 136, f"<recipe>.{name}", stages, "strong").draw())
        parts.append(f'<text class="code" x="{x + 10}" y="{top + 152}">{escape("Asset: " + asset)}</text>')
        if index:
            parts.append(arrow(x - gap + 2, top + 60, x - 2, top + 60))
    tuned = ("examples, finetune, evaluate, register", "a base model learns instructions, preferences, pages")
    request = ("tombstones that every other DAG reads", "report: documents, steps, checkpoints that met it")
    parts.append(Box(10, 220, 440, 62, "<recipe>.finetune", tuned).draw())
    parts.append(Box(472, 220, 440, 62, "<recipe>.takedown", request).draw())
    places = "every stage: Airflow worker, local processes, Dask, GPU pod or JobSet gang; same bytes everywhere"
    parts.append(
        '<text class="small" x="10" y="20">Airflow DAGs, chained by Assets; one task per stage, [..] mapped</text>'
    )
    parts.append(f'<text class="small" x="10" y="306">{places}</text>')
    return picture(924, 316, "The DAGs of a recipe", parts)


def trace() -> str:
    """Returns a page on its way to the training steps and checkpoints that saw it."""
    stations = (
        ("page", "URL"),
        ("capture", "WARC file, offset"),
        ("document", "id, source, tier"),
        ("tokens", "shard, row"),
        ("sequences", "plan, position"),
        ("steps", "batch of the step"),
        ("checkpoints", "first and later"),
    )
    parts, width, gap = [], 112, 22
    for index, (name, what) in enumerate(stations):
        x = 8 + index * (width + gap)
        ends = index in (0, len(stations) - 1)
        parts.append(Box(x, 30, width, 50, name, (what,), "strong" if ends else "box").draw())
        if index:
            parts.append(arrow(x - gap + 2, 48, x - 2, 48))
            parts.append(arrow(x - 2, 62, x - gap + 2, 62))
    parts.append('<text class="code" x="8" y="18">sluice trace --recipe demo URL</text>')
    parts.append('<text class="code" x="8" y="100">sluice trace --recipe demo step:42</text>')
    return picture(932, 110, "A page, the training steps that read it, and back", parts)


if __name__ == "__main__":
    (HERE / "pipeline.svg").write_text(pipeline())
    (HERE / "trace.svg").write_text(trace())
