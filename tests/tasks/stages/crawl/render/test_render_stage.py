"""The stage: captured pages are rendered into parts like those of a segment. With real Chromium."""

import itertools
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from fastwarc import ArchiveIterator, WarcRecordType

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.web.url import authority, key
from tasks.stages.crawl.config import CrawlConfig, RenderConfig
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.fetchlog import RETRY, SUCCESS, Outcome, to_table
from tasks.stages.crawl.storage.warc import WarcWriter
from tests.soak import soak_but
from tests.tasks.stages.crawl.cycle import links_table
from tests.tasks.stages.crawl.site import Site

ROOT = Path(__file__).parents[5]
APP = """<!doctype html><title>App</title><div id="root"></div><script>
fetch("/data").then(one => one.text()).then(text => {
  root.innerHTML = "<h1>" + text + "</h1><a href='more'>more</a> <a href='http://elsewhere.example/'>out</a>";
});</script>"""
RUN = """
from tests.soak import soak_but
from tests.conftest import run_stage_in
from tasks.core.artifact import ArtifactId, Artifact
from tasks.stages.crawl.config import CrawlConfig
from tasks.core.store import Store
store = Store({folder!r})
inputs = {{"segment": Artifact.open_at(store, ArtifactId("test/segment/p0", "dev")),
           "seeds": Artifact.open_at(store, ArtifactId("test/tasks-stages-crawl-inject", "dev"))}}
config = CrawlConfig.model_validate_json({config!r})
run_stage_in({folder!r}, "tasks.stages.crawl.render.stage", config, inputs, member="p0")
"""


def config_for(site, **render):
    settings = {"enabled": True, "settle_ms": 300, "timeout_s": 10.0, **render}
    return CrawlConfig(
        seeds=(site.url(),),
        allow_loopback=True,
        delay_s=0.0,
        latency_factor=0.0,
        partitions=1,
        render=RenderConfig(**settings),
    )


def capture(writer, url, html, render=True, headers=()):
    body = html.encode()
    answer = Response(
        status=200,
        reason="OK",
        headers=(("Content-Type", "text/html; charset=utf-8"), *headers),
        body=body,
        truncated="",
        address="127.0.0.1",
        request=b"GET / HTTP/1.1\r\n\r\n",
        seconds=0.1,
    )
    written = writer.capture(url, datetime.now(UTC), answer, {})
    return Outcome(
        key=key(url),
        url=url,
        host=authority(url),
        depth=1,
        status=SUCCESS,
        requested=True,
        http_status=200,
        mime="text/html",
        bytes=len(body),
        payload_digest=written.payload_digest,
        record_id=written.record_id,
        warc_file=f"warc/{Path('part').name}.warc.gz",
        warc_offset=written.offset,
        render=render,
        fetched_at=datetime.now(UTC),
    )


@pytest.fixture
def segment(tmp_path):
    """Writes a segment like fetch, from (url, html) or (url, html, options)."""

    def write(*pages):
        output = Output(Store(str(tmp_path)), ArtifactId("test/segment/p0", "dev"), "0" * 64, member="p0")
        with output.part("part") as part:
            with part.file("warc/part.warc.gz") as file:
                writer = WarcWriter(file, "warc/part.warc.gz", "sluice/0.1", "sluice/0.1")
                rows = [capture(writer, url, html, **dict(*options)) for url, html, *options in pages]
                writer.finish()
            for folder, table in (("log", to_table(rows)), ("links", links_table(rows, 1))):
                with part.file(f"{folder}/part.parquet") as file:
                    pq.write_table(table, file)
            part.count_in(len(rows))
            part.count_out(len(rows))
        return commit(output, "fetch", 1, RenderConfig(), [], Report())

    return write


@pytest.fixture
def rendered(run_stage):
    def run(config, segment, **options):
        seeds = run_stage("tasks.stages.crawl.inject", config)
        return run_stage(
            "tasks.stages.crawl.render.stage", config, {"segment": segment, "seeds": seeds}, member="p0", **options
        )

    return run


def log_of(artifact):
    rows = [row for path in artifact.files("log/") for row in artifact.table(path).to_pylist()]
    assert len({row["url"] for row in rows}) == len(rows), "logged twice"
    return {row["url"]: row for row in rows}


def links_of(artifact):
    return {row["url"] for path in artifact.files("links/") for row in artifact.table(path).to_pylist()}


def records_of(artifact):
    found = {}
    for path in artifact.files("warc/"):
        with artifact.open(path) as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.conversion):
                headers = dict(record.headers)
                assert headers["WARC-Target-URI"] not in found, "stored twice"
                found[headers["WARC-Target-URI"]] = headers, record.reader.read()
    return found


@pytest.mark.real_time
def test_text_and_links_from_scripts_are_stored_with_the_capture(chromium, segment, rendered):
    with Site({"/data": "Text from a script"}) as site:
        captured = segment((site.url("/app/"), APP), (site.url("/plain"), "<p>text</p>", {"render": False}))
        result = rendered(config_for(site), captured)
        assert site.paths() == ["/robots.txt", "/data"]  # the page itself is not requested again
        url, more = site.url("/app/"), site.url("/app/more")
    headers, body = records_of(result)[url]
    assert b"<h1>Text from a script</h1>" in body
    assert headers["WARC-Refers-To"] == f"<{log_of(captured)[url]['record_id']}>"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    row = log_of(result)[url]
    assert (row["status"], row["reason"], row["kind"], row["depth"]) == (SUCCESS, "", "page", 1)
    assert f"<{row['record_id']}>" == headers["WARC-Record-ID"]
    assert row["bytes"] == len(body)
    assert links_of(result) == {more}
    assert result.record.rows_in == result.record.rows_out == 1
    assert result.read(result.files("index/")[0]).count(b"\n") == 1


def test_a_host_denied_meanwhile_gets_no_page_or_subresource_request(chromium, segment, rendered, tmp_path):
    with Site({"/data": "Text from a script"}) as denied, Site({"/data": "Text of its own"}) as site:
        theirs = APP.replace("/data", denied.url("/data"))
        captured = segment((denied.url("/app/"), APP), (site.url("/app/"), APP), (site.url("/mixed/"), theirs))
        (tmp_path / "hosts.toml").write_text(f'deny = ["127.0.0.1:{denied.port}"]')
        config = config_for(site).model_copy(update={"hosts_file": str(tmp_path / "hosts.toml")})
        result = rendered(config, captured)
        assert denied.requests == []
        log = log_of(result)
        assert (log[denied.url("/app/")]["status"], log[denied.url("/app/")]["reason"]) == (RETRY, "host_denied")
        assert log[site.url("/app/")]["status"] == log[site.url("/mixed/")]["status"] == SUCCESS


def test_without_rendering_the_artifact_is_empty_and_no_browser_is_needed(segment, rendered, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with Site({}) as site:
        result = rendered(config_for(site, enabled=False), segment((site.url("/"), APP)))
        assert site.requests == []
    assert result.files() == []
    assert result.record.rows_in == 0
    assert "need a browser: 1; rendering is off" in result.record.note


def test_with_nothing_to_render_no_browser_is_needed(segment, rendered, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with Site({}) as site:
        assert rendered(config_for(site), segment((site.url("/"), "<p>text", {"render": False}))).files() == []


def test_a_missing_browser_is_named_with_its_remedy(segment, rendered, monkeypatch):
    pytest.importorskip("playwright.async_api")
    monkeypatch.setenv("PATH", "")
    with Site({}) as site, pytest.raises(InputError, match="apt install chromium"):
        rendered(config_for(site), segment((site.url("/"), APP)))
    with Site({}) as site, pytest.raises(InputError, match="no-such-browser"):
        rendered(config_for(site, chromium="no-such-browser"), segment((site.url("/"), APP)))


def test_a_missing_package_is_named_with_its_remedy(segment, rendered, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("playwright", "tasks.stages.crawl.render."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "playwright", None)
    with Site({}) as site:
        config, captured = config_for(site), segment((site.url("/"), APP))
        with pytest.raises(InputError, match=r"sluice\[render\]"):
            rendered(config, captured)
        assert rendered(config_for(site, enabled=False), captured, version="off").files() == []


@pytest.mark.soak
def test_pages_that_are_not_kept_are_counted_with_their_reason(chromium, segment, rendered):
    pages = {
        "/kept": "<p>fine</p><script></script>",
        "/endless": "<script>for (;;) {}</script>",
        "/hidden": "<script>document.head.innerHTML = '<meta name=robots content=noindex>'</script><a href=/x>x</a>",
        "/refused": "<script>document.head.innerHTML = '<meta name=robots content=noai>'</script>",
        "/denied/page": APP,
        "/large": "<script>document.write('x'.repeat(2e6))</script>",
    }
    with Site({}, "User-agent: *\nDisallow: /denied/") as site:
        captured = segment(*((site.url(path), html) for path, html in pages.items()))
        result = rendered(config_for(site, timeout_s=2.0, max_dom_bytes=1 << 20, pages_per_part=4), captured)
        reasons = {url.removeprefix(site.url("")): row["reason"] for url, row in log_of(result).items()}
        assert site.url("/x") in links_of(result)
    assert reasons == {
        "/kept": "",
        "/endless": "render_timeout",
        "/hidden": "noindex",
        "/refused": "ai_optout",
        "/denied/page": "robots_denied",
        "/large": "render_too_large",
    }
    assert len(records_of(result)) == result.record.rows_out == 1
    assert result.record.rows_in == 6
    assert sum(result.record.rejected.values()) == 5


def test_a_part_without_a_rendered_page_has_no_archive(chromium, segment, rendered):
    with Site({}, "User-agent: *\nDisallow: /") as site:
        result = rendered(config_for(site), segment((site.url("/a"), APP)))
        assert log_of(result)[site.url("/a")]["reason"] == "robots_denied"
    assert result.files("warc/") == result.files("index/") == []


def test_the_cap_renders_the_first_pages_of_every_host_and_logs_the_rest(chromium, segment, rendered):
    with Site({}) as one, Site({}) as two:
        pages = [(one.url(f"/{n}"), "<p>x<script></script>") for n in range(4)] + [
            (two.url("/0"), "<p>x<script></script>")
        ]
        result = rendered(config_for(one, max_pages=2), segment(*pages))
        log = log_of(result)
        assert {url for url, row in log.items() if not row["reason"]} == {one.url("/0"), two.url("/0")}
    assert len(log) == 5
    assert result.record.rejected == {"render_cap": 3}


def test_pages_of_a_host_are_rendered_sequentially_with_its_pause(chromium, segment, rendered):
    page = "<script>fetch('/begin'); setTimeout(() => fetch('/end'), 200)</script>"
    with Site({}, "User-agent: *\nCrawl-delay: 4") as site:
        config = config_for(site, concurrency=4)
        rendered(config, segment(*((site.url(f"/{n}"), page) for n in range(2))))
        asked = [(begin, end, path) for begin, end, _, path in sorted(site.requests) if path != "/robots.txt"]
    assert [path for *_, path in asked] == ["/begin", "/end"] * 2
    pauses = [later[0] - earlier[1] for earlier, later in itertools.pairwise(asked) if later[2] == "/begin"]
    assert min(pauses) >= 4.0


def test_a_host_whose_pause_exceeds_the_time_left_waits_for_the_next_cycle(chromium, segment, rendered):
    with Site({}, "User-agent: *\nCrawl-delay: 86400") as site:
        result = rendered(config_for(site), segment((site.url("/a"), APP)))
        assert log_of(result)[site.url("/a")]["reason"] == "render_time_box"


def test_a_script_redirect_is_recorded_as_a_redirect(chromium, segment, rendered):
    with Site({}) as site:
        html = "<p>Wait</p><script>location.href = '/target'</script>"
        result = rendered(config_for(site), segment((site.url("/from"), html)))
        assert site.url("/target") in links_of(result)
        assert "/target" not in site.paths()


def test_the_browser_applies_the_csp_of_the_page(chromium, segment, rendered):
    with Site({"/data": "Text"}) as site:
        policy = {"headers": (("Content-Security-Policy", "connect-src 'none'"),)}
        result = rendered(config_for(site), segment((site.url("/app/"), APP, policy)))
        assert "/data" not in site.paths()
        assert site.url("/app/") in records_of(result)


def start(folder, config):
    script = RUN.format(folder=str(folder), config=config.model_dump_json())
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("how", soak_but([1], [signal.SIGKILL, signal.SIGTERM]))
@pytest.mark.soak
def test_a_restarted_rendering_resumes_after_its_committed_parts(chromium, segment, run_stage, rendered, tmp_path, how):
    page = "<p id=said></p><script>fetch('/seen' + location.pathname); said.textContent = location.pathname</script>"
    with Site({}) as site:
        config = config_for(site, pages_per_part=2, concurrency=1)
        captured = segment(*((site.url(f"/{n}"), page) for n in range(6)))
        run_stage("tasks.stages.crawl.inject", config)
        process = start(tmp_path, config)
        while len(site.requests) < 5 and process.poll() is None:
            time.sleep(0.01)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.send_signal(how)
        _, said = process.communicate(timeout=20)
        assert psutil.wait_procs(family, timeout=20)[1] == [], "a browser was left behind"
        if how == signal.SIGTERM:
            assert b"StoppedError" in said
        assert Artifact.find(Store(str(tmp_path)), ArtifactId("test/tasks-stages-crawl-render-stage/p0", "dev")) is None
        before = len(site.requests)
        result = rendered(config, captured)
        assert len(site.requests) - before <= 1 + 4  # robots.txt, and the pages of the last two parts
        assert set(records_of(result)) == {site.url(f"/{n}") for n in range(6)}
    assert len(log_of(result)) == 6
    assert result.verify() == []
