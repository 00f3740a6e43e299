"""A site's tdmrep.json in a crawl: when it is requested, and the handling of reserved pages."""

import asyncio
import contextlib
import gzip
import itertools
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from tasks.formats.web.tdmrep import TDMREP
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb
from tasks.stages.crawl.storage.fetchlog import rules_of
from tests.tasks.stages.crawl.cycle import pages_of
from tests.tasks.stages.crawl.site import Site

PAGES = {"/": "<a href=/kept>1</a><a href=/closed/a>2</a>", "/kept": "kept", "/closed/a": "<a href=/beyond>3</a>"}
CLOSED = [{"location": "/closed/", "tdm-reservation": 1, "tdm-policy": "https://h/policy.json"}]


def config_for(*sites, **settings):
    base = {"seeds": tuple(site.url() for site in sites), "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0}
    return CrawlConfig(**{**base, "partitions": 1, "max_backoff_s": 0.1, "timeout_s": 1.0, **settings})


def site_with(rules, pages=PAGES, robots=""):
    """A site whose tdmrep.json is `rules`: JSON, bytes or a handler."""
    if not callable(rules):
        body = rules if isinstance(rules, bytes) else json.dumps(rules).encode()
        answer = lambda _: web.Response(body=body, content_type="application/json")  # noqa: E731
    else:
        answer = rules
    return Site({**pages, "/beyond": "beyond", TDMREP: answer}, robots)


@contextlib.contextmanager
def sites_with(files):
    """Sites by name, each with its tdmrep.json, for one crawl of all."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(site_with(file)) for name, file in files.items()}


def captured(cycle):
    return {url for segment in cycle.segments for url in pages_of(segment)}


def outcome(row):
    return {name: row[name] for name in ("status", "reason", "requested", "http_status", "mime", "kind", "error")}


def status(code, **headers):
    return lambda _: web.Response(status=code, headers=headers)


def test_a_page_reserved_by_the_file_is_handled_like_one_reserved_by_header(crawl):
    def closed(_):
        return web.Response(text=PAGES["/closed/a"], content_type="text/html", headers={"tdm-reservation": "1"})

    with site_with(CLOSED) as site:
        by_file = crawl(config_for(site), "file")
        assert captured(by_file) == {site.url("/"), site.url("/kept"), site.url("/beyond")}
        row = by_file.log()[site.url("/closed/a")]
        assert by_file.urls()[site.url("/closed/a")]["reason"] == "ai_optout"
    with site_with(status(404), PAGES | {"/closed/a": closed}) as site:
        by_header = crawl(config_for(site), "header")
        assert outcome(by_header.log()[site.url("/closed/a")]) == outcome(row)
    assert (row["status"], row["reason"], row["requested"]) == ("fetch_gone", "ai_optout", True)


def test_header_and_meta_tag_override_the_file(crawl):
    pages = {
        "/": "".join(f"<a href=/{name}>x</a>" for name in ("meta", "header", "text", "none"))
        + '<meta name="tdm-reservation" content="0">',
        "/meta": '<meta name="tdm-reservation" content="0">meta',
        "/header": lambda _: web.Response(text="header", content_type="text/html", headers={"TDM-Reservation": "0"}),
        "/text": lambda _: web.Response(text="text"),
        "/none": "none",
    }
    with site_with([{"location": "/", "tdm-reservation": 1}], pages) as site:
        cycle = crawl(config_for(site))
        assert captured(cycle) == {site.url("/"), site.url("/meta"), site.url("/header")}
        reasons = {path: cycle.log()[site.url(path)]["reason"] for path in ("/text", "/none")}
    assert set(reasons.values()) == {"ai_optout"}


def test_the_file_is_requested_once_after_robots_txt_and_before_pages(crawl):
    with site_with(CLOSED) as one, site_with(status(404)) as two:
        crawl(config_for(one, two, concurrency=16))
        for site in (one, two):
            assert site.paths()[:3] == ["/robots.txt", TDMREP, "/"]
            assert site.paths().count(TDMREP) == 1


def test_the_delay_of_a_host_applies_to_its_file_too(crawl):
    with site_with(CLOSED) as slow, site_with(CLOSED, robots="User-agent: *\nCrawl-delay: 0.3") as asking:
        crawl(config_for(slow, asking, delay_s=0.15))
        for site, delay in ((slow, 0.15), (asking, 0.3)):
            times = sorted(site.requests)
            assert TDMREP in [path for *_, path in times]
            gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(times)]
            assert min(gaps) >= delay - 0.01  # the end of a response is recorded slightly after its last byte was sent


def test_without_tdm_in_the_policy_no_file_is_requested_and_every_page_is_kept(crawl):
    with site_with(CLOSED) as site:
        cycle = crawl(config_for(site, ai_optouts=("robots", "header", "meta")))
        assert TDMREP not in site.paths()
        assert site.url("/closed/a") in captured(cycle)


def test_a_host_without_pages_to_fetch_gets_no_request(crawl):
    shut = "User-agent: *\nDisallow: /"
    unwilling = "User-agent: GPTBot\nDisallow: /"
    with site_with(CLOSED) as fine, site_with(CLOSED, robots=shut) as one, site_with(CLOSED, robots=unwilling) as two:
        crawl(config_for(fine, one, two))
        assert one.paths() == two.paths() == ["/robots.txt"]


def test_a_file_that_robots_txt_forbids_is_not_fetched_and_its_pages_are(crawl, caplog):
    caplog.set_level("INFO", logger="sluice")
    with site_with(CLOSED, robots="User-agent: *\nDisallow: /.well-known/") as site:
        cycle = crawl(config_for(site))
        assert TDMREP not in site.paths()
        assert site.url("/closed/a") in captured(cycle)
    assert f"{site.url('')} reserves nothing: its tdmrep.json cannot be fetched (robots.txt forbids" in caplog.text


async def reset(request):
    request.transport.abort()
    return web.Response()


HUGE = json.dumps(CLOSED).encode() + b" " * (512 << 10)
BOMB = gzip.compress(HUGE * 40)


INVALID = {
    "404": (status(404), ""),
    "403": (status(403), ""),
    "500": (status(500), "cannot be fetched (status 500)"),
    "503": (status(503), "cannot be fetched (status 503)"),
    "reset": (reset, "cannot be fetched (protocol"),
    "broken": (b"[{", "cannot be read (it is no JSON"),
    "empty": (b"", "cannot be read (it is no JSON"),
    "a page": (b"<html>Not found</html>", "cannot be read (it is no JSON"),
    "no array": (CLOSED[0], "cannot be read (it is no array"),
    "nested": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "huge": (HUGE, "it is longer than 524288 bytes"),
    "bomb": (
        lambda _: web.Response(body=BOMB, headers={"Content-Encoding": "gzip"}),
        "it is longer than 524288 bytes",
    ),
    "coding": (
        lambda _: web.Response(body=b"\0broken", headers={"Content-Encoding": "br"}),
        "its content coding cannot be undone",
    ),
    "to a private address": (status(302, Location="http://10.0.0.1/tdmrep.json"), "private_address"),
    "to metadata": (status(302, Location="http://169.254.169.254/"), "private_address"),
    "to a file": (status(302, Location="file:///etc/passwd"), "without a usable Location"),
    "to itself": (status(302, Location=TDMREP), "more than 5 redirects"),
    "nowhere": (status(301), "without a usable Location"),
}


def test_a_missing_or_invalid_file_reserves_nothing_and_is_reported(crawl, caplog):
    caplog.set_level("INFO", logger="sluice")
    with sites_with({name: file for name, (file, _) in INVALID.items()}) as sites:
        found = captured(crawl(config_for(*sites.values(), timeout_s=20.0)))
    assert found == {site.url(path) for site in sites.values() for path in (*PAGES, "/beyond")}
    # Only of the crawler's log: the servers log the same path.
    ours = [record.message for record in caplog.records if record.name.startswith("sluice")]
    lines = [message for message in ours if "tdmrep.json" in message]
    for name, (_, said) in INVALID.items():
        # Over a pooled connection that is closed at once, the client sends a request again.
        assert sites[name].paths().count(TDMREP) == (2 if name in ("to itself", "reset") else 1), name
        begin = f"{sites[name].url('')} reserves nothing"
        assert [said in line for line in lines if line.startswith(begin)] == ([True] if said else []), name
    assert len(lines) == sum(bool(said) for _, said in INVALID.values())


def test_an_unanswered_request_for_the_file_costs_only_its_timeout(crawl):
    async def never(_):
        await asyncio.sleep(20)

    with site_with(never) as site:
        assert len(captured(crawl(config_for(site, timeout_s=0.3)))) == 4
        assert [path for path, _ in site.headers].count(TDMREP) == 1


def test_a_redirect_of_the_file_is_followed_if_robots_txt_of_the_target_allows(crawl):
    def there(_):
        return web.json_response(CLOSED)

    with Site({"/t": there, "/": "x"}) as other, site_with(status(301, Location=other.url("/t"))) as site:
        assert site.url("/closed/a") not in captured(crawl(config_for(site), "a"))
    shut = "User-agent: *\nDisallow: /t"
    with Site({"/t": there, "/": "x"}, shut) as other, site_with(status(301, Location=other.url("/t"))) as site:
        # One request at a time: the other host's robots.txt is known when the redirect comes.
        seeds = (other.url(), site.url())
        cycle = crawl(config_for(site, seeds=seeds, concurrency=1), "b")
        assert "/t" not in other.paths()
        assert site.url("/closed/a") in captured(cycle)


def test_a_redirect_to_a_host_with_a_long_pause_is_not_awaited(crawl, caplog):
    caplog.set_level("INFO", logger="sluice")
    with Site({"/": "x"}, "User-agent: *\nCrawl-delay: 3600") as other:
        with site_with(status(301, Location=other.url("/t"))) as site:
            seeds = (other.url(), site.url(), site.url("/closed/a"))
            cycle = crawl(config_for(site, seeds=seeds, concurrency=1, time_box_s=3.0))
            assert captured(cycle) == {site.url(path) for path in ("/", "/closed/a", "/kept", "/beyond")}
        assert other.paths() == ["/robots.txt"]
    assert "must not be requested for a while" in caplog.text


def test_a_retry_after_on_the_file_applies_to_the_host(crawl):
    with (
        site_with(status(429, **{"Retry-After": "1"})) as short,
        site_with(status(503, **{"Retry-After": "3600"})) as long,
    ):
        cycle = crawl(config_for(short, long, max_backoff_s=2.0))
        times = {path: begin for begin, _, _, path in short.requests}
        assert times["/"] - times[TDMREP] >= 1.0
        assert len({url for url in captured(cycle) if url.startswith(short.url(""))}) == 4
        assert long.paths() == ["/robots.txt", TDMREP]
        assert cycle.log()[long.url()]["reason"] == "host_backoff"


# --- later cycles

T0 = datetime(2020, 1, 1, tzinfo=UTC)


def rewritten(cycle, file, name, value):
    """Sets one column of a table of the crawl DB."""
    for artifact in cycle.crawldb:
        table = artifact.table(file)
        column = pa.array([value] * table.num_rows, table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, column)
        with artifact.store.write(f"{artifact.address.path}/{file}") as out:
            pq.write_table(table, out)
    return cycle


def due(cycle):
    return rewritten(cycle, crawldb.URLS_FILE, "next_due", T0)


def a_day_later(cycle):
    return rewritten(cycle, crawldb.ROBOTS_FILE, "fetched_at", datetime.now(UTC) - timedelta(hours=25))


def held(cycle):
    return [row for artifact in cycle.crawldb for row in rules_of(artifact.table(crawldb.ROBOTS_FILE))]


def test_the_file_is_cached_for_a_day_like_robots_txt(crawl):
    files = {"closed": CLOSED, "broken": b"broken", "none": status(404)}
    with sites_with(files) as sites:
        kept = {site.url(""): json.dumps(CLOSED).encode() if name == "closed" else b"" for name, site in sites.items()}
        first = due(crawl(config_for(*sites.values()), "c1"))
        assert {row.origin: row.files[row.origin + TDMREP] for row in held(first)} == kept
        for site in sites.values():
            site.requests.clear()
        second = due(crawl(config_for(*sites.values()), "c2", first))
        for name, site in sites.items():
            assert not {"/robots.txt", TDMREP} & set(site.paths())
            assert second.log()[site.url("/closed/a")]["reason"] == ("ai_optout" if name == "closed" else "")
            site.requests.clear()
        assert {row.origin: row.files[row.origin + TDMREP] for row in held(second)} == kept
        crawl(config_for(*sites.values()), "c3", a_day_later(second))
        for site in sites.values():
            assert site.paths()[:2] == ["/robots.txt", TDMREP]


def test_an_unavailable_file_is_requested_again_by_the_next_cycle(crawl):
    answers = [status(503)]
    with site_with(lambda request: answers.pop()(request) if answers else web.json_response(CLOSED)) as site:
        first = due(crawl(config_for(site), "c1"))
        assert [row.files for row in held(first)] == [{}]
        site.requests.clear()
        second = crawl(config_for(site), "c2", first)
        assert site.paths()[0] == TDMREP
        assert [row.files[row.origin + TDMREP] for row in held(second)] == [json.dumps(CLOSED).encode()]
        (row,) = second.warc.table("takedown.parquet").to_pylist()
        assert (row["url"], row["reason"]) == (site.url("/closed/a"), "ai_optout")


def test_a_page_reserved_later_is_taken_down_even_on_a_304(crawl):
    def page(request):
        if request.headers.get("If-None-Match"):
            return web.Response(status=304)
        return web.Response(text="page", content_type="text/html", headers={"ETag": '"v1"'})

    rules = [[], [{"location": "/", "tdm-reservation": 1}]]
    with site_with(lambda _: web.json_response(rules.pop(0)), {"/": page}) as site:
        first = a_day_later(due(crawl(config_for(site), "c1")))
        second = crawl(config_for(site), "c2", first)
        assert second.log()[site.url()]["reason"] == "ai_optout"
        assert second.urls()[site.url()]["takedown"] == "ai_optout"


OPT_OUTS = {"TDM-Reservation": ("1", "ai_optout"), "X-Robots-Tag": ("noindex", "noindex")}
OPT_OUTS |= {"Content-Signal": ("ai-train=no", "ai_optout")}


def test_an_unchanged_page_with_new_opt_out_headers_is_taken_down(crawl):
    def page(request):
        if request.headers.get("If-None-Match"):
            header = request.path.removeprefix("/")
            return web.Response(status=304, headers={header: OPT_OUTS[header][0]})
        return web.Response(text=request.path, content_type="text/html", headers={"ETag": '"v1"'})

    pages = {"/": "".join(f"<a href=/{name}>x</a>" for name in OPT_OUTS), **{f"/{name}": page for name in OPT_OUTS}}
    with site_with(status(404), pages) as site:
        first = a_day_later(due(crawl(config_for(site), "c1")))
        before, log = first.urls(), crawl(config_for(site), "c2", first)
        for name, (_, reason) in OPT_OUTS.items():
            url = site.url(f"/{name}")
            assert (before[url]["takedown"], log.log()[url]["reason"]) == ("", reason)
            assert log.urls()[url]["takedown"] == reason
