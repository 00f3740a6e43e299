import gzip
import io
import itertools
import re
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from aiohttp import web
from warcio.archiveiterator import ArchiveIterator

from tasks.core.errors import InputError
from tasks.formats.warc import archive
from tasks.formats.web.tdmrep import TDMREP
from tasks.run.trace.cards import disallowed_fetches
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page import parser
from tasks.stages.crawl.storage import crawldb
from tasks.stages.extract.config import ExtractConfig
from tests.tasks.stages.crawl.site import Site, linked
from tests.tasks.stages.crawl.test_recrawl import set_column
from tests.tasks.stages.extract.made_pdf import lines, pdf


def config_for(*sites, **settings):
    seeds = tuple(site.url() for site in sites)
    return CrawlConfig(**{"seeds": seeds, "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, **settings})


def captured(warc):
    found = {}
    for file in archive.warc_files(warc):
        with warc.store.open(file.path) as raw:
            for capture in archive.captures(raw):
                assert capture.url not in found
                found[capture.url] = capture.payload_digest
    return found


def test_a_site_is_crawled_from_its_seed_into_a_warc_that_warcio_accepts(crawl):
    with Site(linked(20)) as site:
        cycle = crawl(config_for(site))
        warc = cycle.warc
        assert set(captured(cycle.warc)) == {site.url(path) for path in site.pages}
    assert {part.name: part.rows_out for part in warc.parts}["manifest"] == 20
    for file in archive.warc_files(cycle.warc):
        data = cycle.warc.store.read(file.path)
        records = ArchiveIterator(io.BytesIO(data), check_digests="raise")
        kinds = [record.rec_type for record in records if record.content_stream().read() is not None]
        assert kinds[0] == "warcinfo"
        assert kinds.count("response") == kinds.count("request") == kinds.count("metadata") == file.records
    statuses = {url: row["status"] for url, row in cycle.urls().items()}
    assert set(statuses.values()) == {"db_fetched"}
    assert len(statuses) == 20


def test_every_capture_is_found_through_the_index(crawl):
    with Site(linked(12)) as site:
        cycle = crawl(config_for(site, warc_pages_per_file=5))
    lines = cycle.warc.read(archive.INDEX).decode().splitlines()
    assert lines == sorted(lines)
    assert len(archive.warc_files(cycle.warc)) == 3
    wanted = captured(cycle.warc)
    for line in lines:
        entry = archive.index_entry(line)
        with cycle.warc.store.open(entry["filename"]) as file:
            capture = archive.capture_at(file, int(entry["offset"]))
        assert capture.url == entry["url"]
        assert wanted.pop(capture.url) == capture.payload_digest == f"sha1:{entry['digest']}"
    assert wanted == {}


def test_every_warc_file_is_published_with_its_index(crawl):
    with Site(linked(12)) as site:
        cycle = crawl(config_for(site, warc_pages_per_file=5))
    for file in archive.warc_files(cycle.warc):
        lines = cycle.warc.store.read(file.index).decode().splitlines()
        with cycle.warc.store.open(file.path) as raw:
            stored = [(capture.offset, capture.url, capture.payload_digest) for capture in archive.captures(raw)]
        entries = sorted(map(archive.index_entry, lines), key=lambda entry: int(entry["offset"]))
        assert stored == [(int(one["offset"]), one["url"], f"sha1:{one['digest']}") for one in entries]
        assert len(stored) == file.records


def test_two_requests_to_a_host_are_never_closer_than_the_delay(crawl):
    with Site(linked(6)) as one, Site(linked(6)) as two:
        crawl(config_for(one, two, delay_s=0.15, concurrency=8))
        for site in (one, two):
            assert len(site.requests) == 8  # robots.txt, tdmrep.json and six pages
            times = sorted(site.requests)
            gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(times)]
            assert min(gaps) >= 0.15 - 0.002  # the end of a response is recorded slightly after its last byte was sent


def test_hosts_do_not_wait_for_each_other(crawl):
    with Site(linked(5)) as one, Site(linked(5)) as two:
        crawl(config_for(one, two, delay_s=0.2, partitions=1))
        begin = min(one.requests[0][0], two.requests[0][0])
        end = max(one.requests[-1][1], two.requests[-1][1])
    assert end - begin < 2 * 5 * 0.2


def test_crawl_delay_is_respected(crawl):
    with Site(linked(3), "User-agent: *\nCrawl-delay: 0.3") as site:
        crawl(config_for(site))
        times = sorted(site.requests)
    assert min(later[0] - earlier[1] for earlier, later in itertools.pairwise(times)) >= 0.29


def test_retry_after_is_respected_and_the_page_is_fetched_later(crawl):
    answers = [web.Response(status=429, headers={"Retry-After": "1"})]
    pages = linked(2)
    whole = pages["/1"]
    pages["/1"] = lambda _: answers.pop() if answers else web.Response(text=whole, content_type="text/html")
    with Site(pages) as site:
        cycle = crawl(config_for(site))
        times = [begin for begin, _, _, path in site.requests if path == "/1"]
        assert site.url("/1") in captured(cycle.warc)
    assert len(times) == 2
    assert times[1] - times[0] >= 1.0


def test_every_row_that_is_not_fetched_has_a_reason(crawl):
    async def reset(request):
        request.transport.abort()
        return web.Response()

    pages = {
        "/": "<a href=gone>1</a><a href=private/x>2</a><a href=image>3</a><a href=hidden>4</a><a href=broken>5</a>"
        "<a href=http://10.0.0.1/>6</a><a href=/moved>7</a><a href=reset>8</a><a href=/loop>9</a>",
        "/private/x": "never asked for",
        "/image": lambda _: web.Response(body=b"GIF89a", content_type="image/gif"),
        "/hidden": "<meta name=robots content=noindex><a href=/beyond>x</a>",
        "/beyond": "found through a page that is not kept",
        "/broken": lambda _: web.Response(status=500),
        "/moved": lambda _: web.Response(status=301, headers={"Location": "/target#top"}),
        "/target": "here",
        "/loop": lambda _: web.Response(status=302, headers={"Location": "/loop"}),
        "/reset": reset,
    }
    with Site(pages, "User-agent: *\nDisallow: /private/") as site:
        wide = {"include_hosts": (f"127.0.0.1:{site.port}", "10.0.0.1"), "contact": "mailto:a@b.example"}
        cycle = crawl(config_for(site, **wide))
        assert set(captured(cycle.warc)) == {site.url(path) for path in ("/", "/beyond", "/target")}
        assert "/private/x" not in site.paths()
        reasons = {url.removeprefix(site.url("")): row["reason"] for url, row in cycle.log().items()}
        rows = list(cycle.urls().values())
        status = {row["url"]: row["status"] for row in rows}
        assert [row["url"] for row in rows if row["next_due"] is None] == []
    partition_of_private = reasons.pop("http://10.0.0.1/", "private_address")  # may belong to the other partition
    assert partition_of_private == "private_address"
    assert reasons == {
        "/": "",
        "/beyond": "",
        "/target": "",
        "/gone": "http_404",
        "/private/x": "robots_denied",
        "/image": "mime",
        "/hidden": "noindex",
        "/broken": "http_500",
        "/moved": "redirect",
        "/loop": "redirect",
        "/reset": "protocol",
    }
    assert status[site.url("/gone")] == "db_gone"
    assert status[site.url("/moved")] == "db_redir_perm"
    assert status[site.url("/broken")] == "db_unfetched"
    for segment in cycle.segments:
        assert segment.record.rows_in == segment.record.rows_out + sum(segment.record.rejected.values())
    counts = disallowed_fetches(cycle.warc)
    assert counts == {"robots_denied": 1, "noindex": 1, "ai_optout": 0}, "what a model's card counts"


def test_a_linked_pdf_file_becomes_a_document_with_pages(crawl, run_stage):
    said = ["The doors of the old museum open at nine in the morning,", "and the last guests leave at ten."]
    served = web.Response(body=pdf([lines(60, 700, said)] * 2), content_type="application/pdf")
    with Site({"/": "<a href=a.pdf>the hours</a>", "/a.pdf": lambda _: served}) as site:
        cycle = crawl(config_for(site))
    config = ExtractConfig.model_validate({"parsers": {"pdf": {}}, "min_chars": 1})
    made = run_stage("tasks.stages.extract.stage", config, {"warc": cycle.warc})
    rows = [row for path in made.files("documents/") for row in made.table(path).to_pylist()]
    (found,) = [row for row in rows if row["url"] == site.url("/a.pdf")]
    assert found["text"] == "\n\n".join([" ".join(said)] * 2)
    assert (found["warc_file"], found["source"]) != ("", "")
    (layout,) = [row for path in made.files("layout/") for row in made.table(path).to_pylist()]
    assert (layout["id"], [one["page"] for one in layout["layout"]]) == (found["id"], [1, 2])


def test_a_redirect_to_a_private_address_is_not_followed(crawl):
    with Site({"/secret": "secret"}) as inside:
        pages = {
            "/": "<a href=/a>a</a><a href=/b>b</a>",
            "/a": lambda _: web.Response(status=302, headers={"Location": "http://169.254.169.254/"}),
            "/b": lambda _: web.Response(status=302, headers={"Location": inside.url("/secret")}),
        }
        with Site(pages) as site:
            cycle = crawl(config_for(site))
            assert set(captured(cycle.warc)) == {site.url("/")}
        assert inside.requests == []


def test_at_most_five_redirects_are_followed(crawl):
    def to(number):
        return lambda _: web.Response(status=301, headers={"Location": f"/{number}"})

    pages = {"/": "<a href=/0>x</a>", **{f"/{number}": to(number + 1) for number in range(50)}}
    with Site(pages) as site:
        crawl(config_for(site))
        assert site.paths() == ["/robots.txt", TDMREP, "/", *(f"/{n}" for n in range(6))]


def test_caps_select_the_same_pages_at_any_concurrency(crawl, run_stage):
    chosen = {}
    with Site(linked(40)) as one, Site(linked(40)) as two:
        names = {str(site.port): name for name, site in (("one", one), ("two", two))}
        for concurrency in (1, 16):
            one.requests.clear()
            two.requests.clear()
            config = config_for(one, two, max_pages=30, max_pages_per_host=25, partitions=1, concurrency=concurrency)
            cycle = crawl(config, version=f"c{concurrency}")
            assert len(one.requests) + len(two.requests) == 30 + 2 * 2
            chosen[concurrency] = captured(cycle.warc)
    assert chosen[1] == chosen[16]
    per_site = defaultdict(int)
    for url in chosen[1]:
        per_site[names[url.split(":")[2].split("/")[0]]] += 1
    assert per_site == {"one": 15, "two": 15}


def test_the_depth_limit_is_respected(crawl):
    with Site(linked(40, fanout=3)) as site:
        cycle = crawl(config_for(site, max_depth=2))
    assert len(captured(cycle.warc)) == 1 + 3 + 9
    known = len(cycle.urls())
    assert known == 1 + 3 + 9


def test_an_unavailable_robots_file_skips_its_host_and_no_other(crawl):
    with Site(linked(3), lambda _: web.Response(status=503)) as closed, Site(linked(3)) as fine:
        cycle = crawl(config_for(closed, fine, partitions=1))
        assert set(captured(cycle.warc)) == {fine.url(path) for path in fine.pages}
        assert set(closed.paths()) == {"/robots.txt"}
        assert cycle.log()[closed.url()]["reason"] == "robots_unavailable"


def test_a_crawl_without_a_page_is_an_error_that_names_host_cause_and_remedy(crawl):
    with Site({}) as site, pytest.raises(InputError) as caught:
        crawl(config_for(site))
    assert f"127.0.0.1:{site.port}" in str(caught.value)
    assert "http_404" in str(caught.value)
    with Site(linked(2), "User-agent: *\nDisallow: /") as site, pytest.raises(InputError, match="robots"):
        crawl(config_for(site))


def test_an_unreachable_host_is_named(crawl):
    with Site({}) as site:
        config = config_for(site)
    with pytest.raises(InputError, match="robots_unavailable"):
        crawl(config)


def test_the_time_limit_postpones_the_rest_to_the_next_cycle(crawl):
    with Site(linked(20)) as site:
        settings = {"delay_s": 0.2, "time_box_s": 1.3}
        cycle = crawl(config_for(site, **settings))
        first = set(captured(cycle.warc))
        assert 1 < len(first) < 10
        rows = cycle.urls()
        assert {url for url, row in rows.items() if row["status"] == "db_fetched"} == first
        # link targets of parsed pages count as known
        assert "db_unfetched" in {row["status"] for row in rows.values()}
        second = crawl(config_for(site, **settings), version="next", previous=cycle)
    assert set(captured(second.warc)) & first == set()


def test_a_capture_records_its_request_and_referrers(crawl):
    with Site(linked(2)) as site:
        cycle = crawl(config_for(site))
        data = cycle.warc.store.read(archive.warc_files(cycle.warc)[0].path)
        found = defaultdict(dict)
        for record in ArchiveIterator(io.BytesIO(data)):
            text = record.content_stream().read().decode()
            found[record.rec_headers.get_header("WARC-Target-URI")][record.rec_type] = (record, text)
    response, _ = found[site.url("/1")]["response"]
    request, _ = found[site.url("/1")]["request"]
    _, notes = found[site.url("/1")]["metadata"]
    assert request.rec_headers.get_header("WARC-Concurrent-To") == response.rec_headers.get_header("WARC-Record-ID")
    assert response.rec_headers.get_header("WARC-IP-Address") == "127.0.0.1"
    assert request.http_headers.get_header("User-Agent").startswith("sluice/")
    assert "hopsFromSeed: 1" in notes
    assert f"via: {site.url('/')}" in notes


def test_an_unfetched_seed_is_fetched_by_the_next_cycle(crawl):
    with Site(linked(2)) as one, Site(linked(2)) as two:
        settings = {"partitions": 1, "max_pages": 1}
        cycle = crawl(config_for(one, two, **settings))
        first = set(captured(cycle.warc))
        assert len(first) == 1
        cycle = crawl(config_for(one, two, **settings), version="next", previous=cycle)
        assert set(captured(cycle.warc)) | first == {one.url(), two.url()}


def test_an_overlong_body_is_truncated_and_marked(crawl):
    with Site({"/": "<a href=/b>b</a>" + "x" * 5000, "/b": "b"}) as site:
        cycle = crawl(config_for(site, max_body_bytes=1024))
        with cycle.warc.store.open(archive.warc_files(cycle.warc)[0].path) as file:
            kept = {capture.url: capture for capture in archive.captures(file)}
    assert (kept[site.url()].headers.get("WARC-Truncated"), len(kept[site.url()].payload)) == ("length", 1024)
    assert "WARC-Truncated" not in kept[site.url("/b")].headers


def revisits_of(warc):
    """Returns the headers of the revisit records by URL."""
    return {
        record.rec_headers.get_header("WARC-Target-URI"): record.rec_headers
        for file in archive.warc_files(warc)
        for record in ArchiveIterator(io.BytesIO(warc.store.read(file.path)))
        if record.rec_type == "revisit"
    }


def test_equal_bodies_at_several_urls_are_stored_once_and_their_links_followed(crawl):
    text = "<a href=next>next</a> The same page under five names."
    names = [f"/{name}/" for name in "abcde"]
    pages = {"/": "".join(f"<a href={name}>{name}</a>" for name in names), "/b/next": "once"}
    with Site({**pages, **dict.fromkeys(names, text)}) as site:
        cycle = crawl(config_for(site))
        log = {url.removeprefix(site.url("")): row for url, row in cycle.log().items()}
        states = {url.removeprefix(site.url("")): row["status"] for url, row in cycle.urls().items()}
        # In the next cycle the first one is unchanged, and the others are still duplicates.
        for one in cycle.crawldb:
            set_column(one, "next_due", [datetime(2026, 1, 1, tzinfo=UTC)] * one.table(crawldb.URLS_FILE).num_rows)
        second = crawl(config_for(site), version="next", previous=cycle)
        again = {url.removeprefix(site.url("")): row["status"] for url, row in second.log().items()}
    assert [log[name]["status"] for name in names] == ["fetch_success"] + ["fetch_duplicate"] * 4
    assert [log[name]["reason"] for name in names] == [""] + ["duplicate"] * 4
    assert [states[name] for name in names] == ["db_fetched"] + ["db_duplicate"] * 4
    assert log["/b/"]["error"] == f"the same bytes as {site.url('/a/')}"
    # Links of three pages, because relative links differ between them.
    assert {url for url in log if url.endswith("next")} == {"/a/next", "/b/next", "/c/next"}
    assert captured(cycle.warc).keys() == {site.url(path) for path in ("/", "/a/", "/b/next")}
    revisits = revisits_of(cycle.warc)
    assert {url.removeprefix(site.url("")) for url in revisits} == set(names[1:])
    assert {headers.get_header("WARC-Refers-To-Target-URI") for headers in revisits.values()} == {site.url("/a/")}
    assert {headers.get_header("WARC-Refers-To") for headers in revisits.values()} == {f"<{log['/a/']['record_id']}>"}
    assert cycle.warc.record.metrics["duplicates"] == 4
    assert "errors.duplicate" not in cycle.warc.record.metrics
    assert [again[name] for name in names] == ["fetch_notmodified"] + ["fetch_duplicate"] * 4


def test_a_page_is_read_as_browsers_read_it(crawl):
    def doubled(_):
        response = web.Response(body=b"<a href=/behind>x</a>", headers={"Content-Type": "application/octet-stream"})
        response.headers.add("Content-Type", "text/html")
        return response

    def changed(_):
        return web.Response(status=203, body=b"<a href=/by-proxy>x</a>", content_type="text/html")

    def refreshing(_):
        return web.Response(body=b"wait", headers={"Refresh": "3; url=/after"}, content_type="text/html")

    pages = {path: path for path in ("/behind", "/by-proxy", "/after")}
    pages |= {"/doubled": doubled, "/203": changed, "/refresh": refreshing}
    pages["/"] = "<a href=/doubled>a</a><a href=/203>b</a><a href=/refresh>c</a>"
    with Site(pages) as site:
        cycle = crawl(config_for(site))
        assert captured(cycle.warc).keys() == {site.url(path) for path in pages}
    log = {url.removeprefix(site.url("")): row for url, row in cycle.log().items()}
    assert (log["/doubled"]["mime"], log["/203"]["http_status"]) == ("text/html", 203)
    assert (log["/refresh"]["status"], log["/refresh"]["redirect"]) == ("fetch_success", site.url("/after"))
    # With the depth of the linking page, like the target of any redirect.
    assert log["/after"]["depth"] == log["/refresh"]["depth"]


def test_a_body_truncated_twice_is_kept_and_marked(crawl):
    async def broken(request):
        response = web.StreamResponse(headers={"Content-Length": "999", "ETag": '"whole"', "Content-Type": "text/html"})
        await response.prepare(request)
        await response.write(b"<a href=/b>b</a> and then")
        request.transport.close()
        return response

    with Site({"/": "<a href=/cut>cut</a>", "/cut": broken, "/b": "b"}) as site:
        cycle = crawl(config_for(site))
        assert site.paths().count("/cut") == 2
        with cycle.warc.store.open(archive.warc_files(cycle.warc)[0].path) as file:
            kept = {capture.url: capture for capture in archive.captures(file)}
        row = cycle.urls()[site.url("/cut")]
    cut = kept[site.url("/cut")]
    assert (cut.headers.get("WARC-Truncated"), cut.payload) == ("disconnect", b"<a href=/b>b</a> and then")
    assert site.url("/b") in kept
    # The ETag belongs to the whole page: with it the page would count as unchanged.
    assert (row["status"], row["etag"]) == ("db_fetched", "")


def test_pages_kept_without_links_are_counted_and_raise_an_alert(crawl, monkeypatch, caplog):
    monkeypatch.setattr(parser, "CPU_S", 0.01)
    endless = b"<p " + b" ".join(b"%x" % number for number in range(300_000)) + b"> text </p>"
    with Site({"/": "<a href=/long>long</a><a href=/b>b</a>", "/long": endless, "/b": "b"}) as site:
        cycle = crawl(config_for(site))
    assert {url: row["unread"] for url, row in cycle.log().items() if row["unread"]} == {
        site.url("/long"): "it takes more than 0.01 CPU seconds"
    }
    segments = [one.record.metrics.get("links_unread", 0.0) for one in cycle.segments]
    assert (sum(segments), cycle.warc.record.metrics["links_unread"]) == (1, 1)
    (alert,) = [record.getMessage() for record in caplog.records if record.name == "sluice.alerts"]
    assert re.search(r"\[(\S+)\] alert: ((links_unread) at .+/long: it takes more .+)", alert)


def test_sitemaps_have_a_higher_size_limit_than_pages(crawl, caplog):
    entries = [f"{'<x>words</x>' * 100_000}<url><loc>/{number}</loc></url>" for number in range(3)]
    body = f"<urlset>{''.join(entries)}</urlset>".encode()
    pages = {"/": "<p>home", **{f"/{number}": f"<p>{number}" + "x" * 3000 for number in range(3)}}
    pages["/s.xml"] = lambda _: web.Response(body=body, content_type="application/xml")
    pages["/t.xml"] = lambda _: web.Response(body=body[:-2_000_000], content_type="text/xml")
    with Site(pages) as site:
        site.robots = f"User-agent: *\nAllow: /\nSitemap: {site.url('/s.xml')}\nSitemap: {site.url('/t.xml')}\n"
        cycle = crawl(config_for(site, max_body_bytes=1024))
    log = {url.removeprefix(site.url("")): row for url, row in cycle.log().items()}
    assert (log["/s.xml"]["kind"], log["/s.xml"]["bytes"]) == ("sitemap", len(body))
    assert (log["/2"]["reason"], log["/2"]["bytes"]) == ("", 1024)
    lines = [record.getMessage() for record in caplog.records if "the sitemap" in record.getMessage()]
    assert lines == [f"1 entries of the sitemap {site.url('/t.xml')} are used: its XML is incomplete"]


def sitemap_of(*paths, root="urlset", item="url", encoding="utf-8"):
    entries = "".join(f"<{item}><loc>{path}</loc></{item}>" for path in paths)
    return f'<?xml version="1.0" encoding="{encoding}"?><{root}>{entries}</{root}>'.encode()


def test_what_robots_txt_or_an_index_names_is_a_sitemap_of_any_media_type(crawl):
    maps = {
        "/octet": ("application/octet-stream", sitemap_of("/p1")),
        "/octet.gz": ("application/octet-stream", gzip.compress(sitemap_of("/p2"))),
        "/html": ("text/html; charset=utf-8", sitemap_of("/p3")),
        "/none": (None, sitemap_of("/p4")),
        "/xhtml": ("application/xhtml+xml", sitemap_of("/p5")),
        "/gunzip": ("application/x-gunzip", gzip.compress(sitemap_of("/p6"))),
        "/gzip": ("gzip", gzip.compress(gzip.compress(sitemap_of("/p7")))),
        "/utf16": ("text/xml; charset=utf-8", sitemap_of("/p8", encoding="utf-16")),
        "/text": ("binary/octet-stream", b"http://PLACE/p9\n"),
        "/index": ("text/plain", sitemap_of("/inner", "/inner.gz", root="sitemapindex", item="sitemap")),
        "/image": ("image/png", sitemap_of("/p10")),
        "/page": ("text/html", b"<title>Contents</title><a href=/p11>a page</a>"),
    }
    inner = {
        "/inner": ("application/octet-stream", b"http://PLACE/p12\n"),
        "/inner.gz": ("application/x-tar", gzip.compress(sitemap_of("/p13"))),
        "/rss": ("text/html", b"<rss><channel><item><link>/p14</link></item></channel></rss>"),
    }

    def respond(request):
        mime, body = (maps | inner)[request.path]
        body = body.replace(b"PLACE", request.host.encode())
        return web.Response(body=body, headers={"Content-Type": mime} if mime else {})

    listed = [f"/p{number}" for number in range(1, 15)]
    pages = {"/": "<p>home<a href=/rss>feed</a><a href=/binary>binary</a>", **{page: f"<p>{page}" for page in listed}}
    pages |= dict.fromkeys(maps | inner, respond)
    pages["/binary"] = lambda _: web.Response(body=sitemap_of("/p0"), content_type="application/octet-stream")
    with Site(pages) as site:
        site.robots = "User-agent: *\nDisallow:\n" + "".join(f"Sitemap: {site.url(path)}\n" for path in maps)
        log = {url.removeprefix(site.url("")): row for url, row in crawl(config_for(site)).log().items()}
    assert [page for page in listed if page not in log or log[page]["reason"]] == []
    assert {path for path, row in log.items() if row["kind"] == "sitemap"} == (maps | inner).keys() - {"/page", "/rss"}
    assert (log["/page"]["kind"], log["/rss"]["kind"]) == ("page", "feed")
    assert (log["/binary"]["reason"], log["/binary"]["bytes"], "/p0" in log) == ("mime", 0, False)


@pytest.mark.parametrize(
    ("answers", "asked", "found"),
    [
        ({"/sitemap.xml": sitemap_of("/hidden")}, ["/sitemap.xml"], True),
        ({"/sitemap_index.xml": sitemap_of("/hidden")}, ["/sitemap.xml", "/sitemap_index.xml"], True),
        ({"/sitemap.xml": "<p>Nothing here</p>"}, ["/sitemap.xml", "/sitemap_index.xml"], False),
        ({}, ["/sitemap.xml", "/sitemap_index.xml"], False),
    ],
)
def test_a_site_whose_robots_txt_names_no_sitemap_is_asked_for_one_once(crawl, answers, asked, found):
    with Site({"/": "<a href=/a>a</a>", "/a": "<p>a", "/hidden": "<p>hidden", **answers}) as site:
        cycle = crawl(config_for(site, guess_sitemaps=True))
        assert sorted(path for path in site.paths() if "sitemap" in path) == asked
        again = crawl(config_for(site, guess_sitemaps=True, recrawl=True), "next", cycle)
        assert sorted(path for path in site.paths() if "sitemap" in path) == asked
        assert ("/hidden" in site.paths()) is found
    log = {url.removeprefix(site.url("")): row for url, row in cycle.log().items()}
    missing = [path for path in asked if path not in answers or not found]
    assert [path for path, row in sorted(log.items()) if row["reason"]] == missing
    assert {log[path]["reason"] for path in missing} <= {"no_sitemap"}
    figures = {name: value for one in (cycle, again) for name, value in one.warc.record.metrics.items()}
    assert [name for name in figures if name.startswith("errors.")] == []
    (domain,) = cycle.warc.table("domains.parquet").to_pylist()
    assert (domain["errors"], domain["main_reason"]) == (0, "")
    assert sum(one.record.rows_in for one in cycle.segments) == len(log)


def test_a_sitemap_is_not_guessed_if_the_site_names_one_or_the_recipe_forbids_it(crawl):
    with Site({"/": "<p>home", "/s.xml": sitemap_of("/a"), "/a": "<p>a"}) as site:
        crawl(config_for(site))
        crawl(config_for(site, guess_sitemaps=False), "off")
        site.robots = f"Sitemap: {site.url('/s.xml')}"
        crawl(config_for(site, guess_sitemaps=True), "named")
    assert [path for path in site.paths() if "sitemap" in path] == []
    assert "/a" in site.paths()


def test_trap_detection_ends_the_crawl_of_an_endless_site(crawl):
    class Endless(dict):
        def get(self, path, default=None):
            return f'<a href="{path.rstrip("/")}/again/">deeper</a>'

    with Site({}) as site:
        site.pages = Endless()
        cycle = crawl(config_for(site, max_depth=100))
    assert len(captured(cycle.warc)) == 3
