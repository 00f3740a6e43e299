"""Limits of one page, and its captured content. With real Chromium."""

import asyncio

import pytest
from aiohttp import web

from tests.soak import soak_but
from tests.tasks.stages.crawl.site import Site


@pytest.mark.parametrize(
    "script", soak_but([0], ["for (;;) {}", "addEventListener('load', () => { for (;;) {} })", "for (;;) alert(1)"])
)
def test_an_endless_script_is_killed_with_its_browser(render, browsers, script):
    from tasks.stages.crawl.render.queue import PageError

    with Site({}) as site, pytest.raises(PageError) as caught:
        render(site, f"<p>text</p><script>{script}</script>", timeout_s=1.0)
    assert caught.value.reason == "render_timeout"
    assert browsers() == []


def test_a_page_that_never_settles_is_captured_at_its_timeout(render):
    async def later(_):
        await asyncio.sleep(30)
        return web.Response()

    with Site({"/later": later}) as site:
        rendered = render(site, "<p>here already<script>fetch('/later')</script>", timeout_s=2.0)
    assert b"here already" in rendered.document.html
    assert not rendered.document.complete


def test_a_page_that_exhausts_memory_is_killed(render, browsers):
    from tasks.stages.crawl.render.queue import PageError

    hungry = "const held = []; setInterval(() => held.push(new Uint8Array(64 << 20).fill(1)), 20)"
    with Site({}) as site, pytest.raises(PageError) as caught:
        render(site, f"<script>{hungry}</script>", max_memory_bytes=512 << 20, timeout_s=30.0, settle_ms=60_000)
    assert caught.value.reason in ("render_memory", "render_crash")
    assert browsers() == []


@pytest.mark.parametrize(
    "script",
    [
        "addEventListener('load', () => { location.href = 'about:blank'; })",
        "const other = new Blob(['x'], {type: 'text/html'});"
        "addEventListener('load', () => { location.href = URL.createObjectURL(other); })",
        "document.documentElement.remove()",
    ],
)
def test_a_page_that_navigates_away_is_dropped(render, script):
    from tasks.stages.crawl.render.queue import PageError

    with Site({}) as site, pytest.raises(PageError) as caught:
        render(site, f"<p>text</p><script>{script}</script>")
    assert caught.value.reason == "render_failed"


def test_a_rendered_page_over_the_size_limit_is_dropped(render):
    from tasks.stages.crawl.render.queue import PageError

    # Hidden, because the layout of so long a word takes a browser seconds.
    page = "<script>document.write('<p hidden>' + 'x'.repeat(3e6))</script>"
    with Site({}) as site, pytest.raises(PageError) as caught:
        render(site, page, max_dom_bytes=1 << 20, timeout_s=60.0)
    assert caught.value.reason == "render_too_large"


def test_requests_beyond_the_cap_are_blocked(render):
    with Site({}) as site:
        page = "<p>text</p><script>for (let i = 0; i < 50; i++) fetch('/n' + i)</script>"
        rendered = render(site, page, max_requests=10)
        assert len(site.requests) <= 10
    assert not rendered.document.complete


def test_an_endless_stream_ends_at_the_byte_cap(render):
    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    with Site({"/endless": endless}) as site:
        rendered = render(site, "<p>text</p><script>fetch('/endless').then(r => r.text())</script>", max_bytes=1 << 20)
    assert rendered.spent == "bytes"
    assert rendered.received <= (1 << 20) + (64 << 10)
    assert b"<p>text</p>" in rendered.document.html


def test_a_page_cannot_override_the_functions_that_read_it(render):
    lies = """<p>true</p><script>
    for (const [kind, name] of [[Element.prototype, "outerHTML"], [Document.prototype, "documentElement"]])
      Object.defineProperty(kind, name, {get() { return {outerHTML: "false"}; }});
    String.prototype.toString = XMLSerializer.prototype.serializeToString = () => "false";</script>"""
    with Site({}) as site:
        assert b"<p>true</p>" in render(site, lies).document.html


def test_a_page_in_another_charset_is_stored_as_utf_8(render):
    page = "<meta charset=windows-1251><p>Привет<script>document.body.append(', мир')</script>".encode("windows-1251")
    with Site({}) as site:
        shown = render(site, page).document.html.decode()
    assert "<p>Привет" in shown
    assert ", мир</p>" in shown or "</p>, мир" in shown


def test_robots_txt_applies_to_subresources_of_a_page(render):
    with Site({}) as site:
        page = "<script>fetch('/open'); fetch('/closed/x')</script>"
        render(site, page, allowed=lambda url: "/closed/" not in url)
        assert site.paths() == ["/open"]


def test_the_browser_sends_the_user_agent_of_the_crawler(render):
    with Site({"/data": "x"}) as site:
        page = "<p id=said></p><script>said.textContent = navigator.userAgent; fetch('/data')</script>"
        rendered = render(site, page)
        agents = {headers["User-Agent"] for _, headers in site.headers}
    assert agents == {"sluice/0.1 (+mailto:a@b.example)"}
    assert b"sluice/0.1 (+mailto:a@b.example)" in rendered.document.html
