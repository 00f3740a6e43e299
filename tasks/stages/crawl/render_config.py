"""Settings of rendering script-generated pages in a browser (the recipe's [crawl.render] section)."""

from typing import Literal

from pydantic import Field

from tasks.core.config import Config


class RenderConfig(Config):
    """Whether pages that need a browser get one, and what one page may cost."""

    enabled: bool = False
    """Render the pages that fetch found to need a browser. Needs Chromium and the Python package playwright."""

    chromium: str = ""
    """The browser's program; empty means chromium, chromium-browser or google-chrome on PATH."""

    max_pages: int = Field(default=100, ge=1)
    """Pages rendered at most in one cycle by one partition."""

    concurrency: int = Field(default=2, ge=1, le=64)
    """Pages rendered at one time (one per host); each has a browser of its own: about 0.5 GB of memory."""

    pages_per_part: int = Field(default=20, ge=1)
    """Pages per committed part: a kill loses at most the open one."""

    timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Seconds a page may load and settle. Whatever it shows then is taken."""

    settle_ms: int = Field(default=1000, ge=0, le=60_000)
    """A page is done when nothing has been under way for so long (milliseconds)."""

    max_requests: int = Field(default=200, ge=1)
    """Requests a page may make; further ones fail."""

    max_bytes: int = Field(default=32 << 20, ge=1024)
    """Bytes a page may receive over all its requests; then the network ends for it."""

    max_dom_bytes: int = Field(default=8 << 20, ge=1024)
    """Size of the finished page above which it is dropped (characters)."""

    max_memory_bytes: int = Field(default=2 << 30, ge=256 << 20)
    """Memory of any one process of a page's browser; above, the browser is killed."""

    blocked: tuple[Literal["image", "media", "font", "stylesheet", "texttrack", "manifest"], ...] = (
        "image",
        "media",
        "font",
    )
    """Kinds of resources that are not requested: they contain no text."""
