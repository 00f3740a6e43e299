"""The Sluice pages in a browser: which are walked, how a tab opens and looks at them, pictures. Not a test module."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from tests.system.browser import SLOW_MS

ROOT = "/sluice"
FOCUSED = """() => {
  const it = document.activeElement;
  const name = it.getAttribute("aria-label") || it.textContent.trim();
  return { kind: it.localName, name, outline: getComputedStyle(it).outlineStyle !== "none" };
}"""
"""Tag and name of the element with the focus, and whether its outline is drawn."""

NARROW, WIDE = 420, 1440
LOOKS = (("light", WIDE), ("dark", NARROW))
"""Theme and width in pixels in which axe reads a page: colors depend on the theme, the layout on the width."""

MOST_BYTES, COLORS = 150_000, 256
"""Of a picture."""
PICTURE_WIDTH = 1200

ANSWER_MS = 180_000
"""For the answer of a form. The server ends a computation with the model after two minutes, and says so."""

MOST_TABS = 80
"""Presses of the Tab key until a link is reached, at most."""


@dataclass(frozen=True)
class Stop:
    """A page of the walk, or the answer of one of its forms.

    Placeholders such as `{kept}` stand for what the store has.

    Attributes:
        path: address below ROOT.
        button: the button that is pressed there; "" for none.
        fields: text of fields of its form, by name.
    """

    path: str
    button: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


OF = "recipe=smoke&version=dev"
WALK = (
    Stop("/"),
    Stop("/recipe/smoke"),
    Stop("/recipe/smoke?version=dev"),
    Stop("/crawl?recipe=smoke"),
    Stop("/crawl?recipe=smoke&version=dev"),
    Stop("/takedowns?recipe=smoke"),
    Stop("/takedowns?recipe=smoke", "Preview", {"urls": "{url}", "reason": "asked for"}),
    Stop("/takedowns?recipe=notes&takedown={takedown}"),
    Stop("/costs?recipe=smoke"),
    Stop("/months?recipe=notes"),
    Stop(f"/lineage?{OF}"),
    Stop("/compare?recipe=smoke&version=begun&other=dev"),
    Stop(f"/corpus?{OF}"),
    Stop(f"/corpus?{OF}&fate=rejected"),
    Stop(f"/corpus?{OF}&text=python&within=text"),
    Stop(f"/document?{OF}&id={{kept}}"),
    Stop(f"/document?{OF}&id={{rejected}}"),
    Stop(f"/duplicates?{OF}"),
    Stop(f"/duplicate?{OF}&part={{part}}&id={{rejected}}&of={{kept}}"),
    Stop(f"/filters?{OF}&limits.gopher_quality.min_words=100"),
    Stop(f"/canaries?{OF}"),
    Stop("/canaries?recipe=smoke&version=begun"),
    Stop(f"/training?{OF}&step=3"),
    Stop(f"/training?{OF}&step=3", "Compute the loss of each document"),
    Stop(f"/ask?{OF}&q=step:3"),
    Stop(f"/trace?{OF}&what={{kept}}"),
    Stop(f"/trace?{OF}&what=step:3"),
    Stop(f"/explain?{OF}", "Explain", {"text": "The Python Standard Library"}),
    Stop(f"/explain?{OF}", "Continue and explain", {"prompt": "def ", "tokens": "8"}),
    Stop(f"/why?{OF}&url=http://elsewhere.example/"),
    Stop("/artifact/smoke/documents@dev"),
    Stop("/airflow?dag=smoke.corpus"),
    Stop("/triggered?dag={dag}&run={run}"),
)
"""Every page, and what its forms answer."""

PICTURED = {
    "recipes": (Stop("/?recipes.sort=-loss"), 400),
    "version": (Stop("/recipe/smoke?version=dev"), 950),
    "filters": (Stop(f"/filters?{OF}&limits.gopher_repetition.max_duplicate_lines=0.05"), 1500),
    "step": (Stop(f"/training?{OF}&step=3#step"), 640),
    "trace": (Stop(f"/trace?{OF}&what={{kept}}"), 380),
    "canaries": (Stop("/canaries?recipe=smoke&version=begun"), 620),
}
"""The pictures of README and docs/pages.md by file name, with their heights in pixels."""


@dataclass
class Tab:
    """A browser tab that opens Sluice pages; notes messages of the console and requests to other hosts.

    Attributes:
        tab: playwright's `Page`.
        base: address of the pages.
        values: of the placeholders of addresses and fields.
        said: messages of the console, and errors of scripts.
        outside: requests to other addresses.
    """

    tab: Any
    base: str
    values: Mapping[str, str]
    said: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def open(self, stop: Stop) -> None:
        """Opens a page, sends its form if the stop has one, and waits for the charts."""
        self.tab.goto(self.base + stop.path.format(**self.values))
        for name, text in stop.fields.items():
            self.tab.locator(f"[name='{name}']").fill(text.format(**self.values))
        if stop.button:
            with self.tab.expect_navigation(timeout=ANSWER_MS):
                self.tab.get_by_role("button", name=stop.button, exact=True).first.click(no_wait_after=True)
        for at in range(self.tab.locator(".chart").count()):
            self.tab.locator(".chart").nth(at).locator("svg.main-svg").first.wait_for(state="attached")

    def look(self, theme: str, width: int) -> None:
        """Changes theme and width of the open page."""
        self.tab.emulate_media(color_scheme=theme)
        self.tab.set_viewport_size({"width": width, "height": 900})

    def overflows(self) -> bool:
        """Returns whether the page is wider than the window."""
        return bool(self.tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def tab_to(self, kind: str, name: str) -> None:
        """Presses Tab until the element with a tag and a name has the focus, which must be visible."""
        for _ in range(MOST_TABS):
            self.tab.keyboard.press("Tab")
            focused = self.tab.evaluate(FOCUSED)
            if (focused["kind"], focused["name"]) == (kind, name):
                assert focused["outline"], f"the focus on {name} is not visible"
                return
        raise AssertionError(f"{name} is not reached by {MOST_TABS} presses of Tab")

    def picture(self, height: int) -> bytes:
        """Returns the upper part of the page as a PNG with few colors."""
        self.tab.set_viewport_size({"width": PICTURE_WIDTH, "height": height})
        self.tab.wait_for_function("!document.querySelector('.chart') || document.querySelector('.chart .main-svg')")
        shown = Image.open(io.BytesIO(self.tab.screenshot()))
        written = io.BytesIO()
        shown.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
        return written.getvalue()


@contextmanager
def tab_of(page: Any, base: str, values: Mapping[str, str]) -> Iterator[Tab]:
    """Opens a tab of its own with the login of `page`; theme and width are those of the first look."""
    theme, width = LOOKS[0]
    context = page.context.browser.new_context(
        storage_state=page.context.storage_state(), color_scheme=theme, viewport={"width": width, "height": 900}
    )
    context.set_default_timeout(SLOW_MS)
    opened = Tab(context.new_page(), base, values)
    opened.tab.on("console", lambda message: opened.said.append(message.text))
    opened.tab.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.tab.on(
        "request",
        lambda request: None if request.url.startswith((base, "data:")) else opened.outside.append(request.url),
    )
    yield opened
    context.close()
