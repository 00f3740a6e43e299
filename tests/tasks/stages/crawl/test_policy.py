"""Settings of single hosts in cycles over real sites: denials, pace, caps, headers."""

import gzip
import itertools
import json
import threading
import time

import pytest
from aiohttp import web

from tasks.core.errors import InputError, RecipeError
from tasks.formats.warc import archive
from tasks.stages.crawl import policy as policies
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.policy import HostSettings, HostsFile, Policy
from tests.tasks.stages.crawl.cycle import Cycle
from tests.tasks.stages.crawl.site import Site, linked
from tests.tasks.stages.crawl.test_generate import chosen, url_row
from tests.tasks.stages.crawl.test_recrawl import make_due

BASE = {"allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "partitions": 1, "recrawl": True}


@pytest.fixture
def hosts_file(tmp_path):
    path = tmp_path / "hosts.toml"
    path.write_text("")
    return path


@pytest.fixture
def configured(hosts_file):
    return lambda *seeds, **settings: CrawlConfig(**{**BASE, "seeds": seeds, "hosts_file": str(hosts_file), **settings})


def all_bytes(artifacts):
    """Returns all bytes of artifacts, including their records, with WARC files decompressed."""
    contents = []
    for artifact in artifacts:
        contents.append(artifact.record.model_dump_json().encode())
        for path in artifact.files():
            data = artifact.read(path)
            contents.append(gzip.decompress(data) if path.endswith(".gz") else data)
    return b"\n".join(contents)


def test_a_denied_host_is_skipped_until_the_denial_is_removed(crawl, configured, hosts_file):
    with Site(linked(4)) as good, Site(linked(4)) as other:
        config = configured(good.url(), other.url())
        first = make_due(crawl(config, "c1"))
        for site in (good, other):
            site.requests.clear()
        hosts_file.write_text(f'deny = ["127.0.0.1:{other.port}"]')
        second = crawl(config, "c2", first)
        assert other.requests == []
        assert sorted(good.paths()) == sorted(linked(4))
        denied = second.urls()[other.url("/1")]
        assert denied["status"] == first.urls()[other.url("/1")]["status"]
        hosts_file.write_text("")
        crawl(config, "c3", second)
        assert sorted(other.paths()) == sorted(linked(4))
    assert config.model_dump() == configured(good.url(), other.url()).model_dump()


def test_a_host_denied_during_a_fetch_gets_no_further_request(crawl, configured, hosts_file, monkeypatch):
    monkeypatch.setattr(policies, "EVERY_S", 0.1)
    began, deny = threading.Event(), {}

    def page(_):
        began.set()
        return web.Response(text="".join(f"<a href=/{n}>x</a>" for n in range(200)), content_type="text/html")

    def complain():
        assert began.wait(20)
        hosts_file.write_text(f'deny = ["127.0.0.1:{site.port}"]')
        deny["at"] = time.monotonic()

    with Site({"/": page, **{f"/{n}": "x" for n in range(200)}}) as site:
        config = configured(site.url(), delay_s=0.05)
        complaint = threading.Thread(target=complain)
        complaint.start()
        cycle = crawl(config, "c1")
        complaint.join()
        last = max(begin for begin, *_ in site.requests)
        asked = len(site.requests)
    assert last < deny["at"] + 2.0
    assert asked < 100
    log = cycle.log()
    assert len(log) == 201
    rows = [row for row in log.values() if row["reason"] == "host_denied"]
    assert len(rows) > 100
    assert not any(row["requested"] for row in rows)
    (held,) = [json.loads(one.read(path)) for one in cycle.segments for path in one.files("policy/")]
    assert held["file"]["deny"] == [f"127.0.0.1:{site.port}"]
    assert [change["denied"] for change in held["read"]] == [[], [f"127.0.0.1:{site.port}"]]
    # They do not count as failed, and are due again soon.
    assert {row["fails"] for row in cycle.urls().values()} == {0}


def test_rendering_uses_the_hosts_file_of_its_fetch(crawl, configured, hosts_file):
    with Site({"/": "a page"}) as site:
        hosts_file.write_text(f"deny = ['bad.localhost']\n[hosts.'127.0.0.1:{site.port}']\ndelay_s = 0.4\n")
        cycle = crawl(configured(site.url(), delay_s=0.01, time_box_s=60), "c1")
    hosts_file.write_text("deny = ['worse.localhost']")
    policy = Policy.of(cycle.config, cycle.segments[0])
    assert policy.delay_s(f"127.0.0.1:{site.port}", 1.0) == 0.4
    assert [policy.denies(f"{one}.localhost") for one in ("bad", "worse", "good")] == [True, True, False]


def test_no_request_reaches_a_denied_host_through_another(crawl, configured, hosts_file):
    with Site({"/": "secret"}) as denied, Site({}) as other, Site({}) as third:
        hosts_file.write_text(f'deny = ["127.0.0.1:{denied.port}"]')
        lead = lambda _: web.Response(status=302, headers={"Location": denied.url("/x")})  # noqa: E731
        other.pages.update({"/": f'<a href="{denied.url("/a")}">a</a><a href=/r>r</a>', "/r": lead})
        third.pages["/"] = "third"
        third.robots = lead
        scope = tuple(f"127.0.0.1:{site.port}" for site in (denied, other, third))
        cycle = crawl(configured(other.url(), third.url(), include_hosts=scope), "c1")
        assert denied.requests == []
    log = cycle.log()
    assert log[denied.url("/a")]["reason"] == log[denied.url("/x")]["reason"] == "host_denied"
    assert log[third.url()]["reason"] == "robots_unavailable"


def test_a_hosts_file_that_becomes_invalid_keeps_its_denials(hosts_file):
    hosts_file.write_text('deny = ["a.example"]')
    policy = Policy(HostsFile(deny=("b.example",)), str(hosts_file))
    policy.reload()
    for text in ("deny = [", 'deny = ["c.example"]\nother = 1'):
        hosts_file.write_text(text)
        with pytest.raises(RecipeError):
            policy.reload()
    hosts_file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        policy.reload()
    assert [policy.denies(f"{one}.example") for one in "abc"] == [True, True, False]


def test_a_cycle_does_not_start_without_its_hosts_file(run_stage, configured, hosts_file):
    config = configured("http://a.localhost/")
    hosts_file.unlink()
    with pytest.raises(InputError, match=r"hosts\.toml cannot be read"):
        Cycle(run_stage, config)


def test_pause_and_cap_of_a_host_come_from_the_hosts_file(crawl, configured, hosts_file):
    with Site(linked(30)) as slow, Site(linked(30)) as fast:
        hosts_file.write_text(f"[hosts.'127.0.0.1:{slow.port}']\ndelay_s = 0.3\nmax_pages = 5\n")
        cycle = crawl(configured(slow.url(), fast.url()), "c1")
        pages = [one for one in slow.requests if one[3] not in ("/robots.txt", "/.well-known/tdmrep.json")]
        begins = sorted(slow.requests)
    assert len(pages) == 5
    assert min(later[0] - earlier[1] for earlier, later in itertools.pairwise(begins)) >= 0.29
    assert len([path for path in fast.paths() if path in linked(30)]) == 30
    hosts = {row["host"]: row["cap"] for row in cycle.fetchlists[0].table("hosts.parquet").to_pylist()}
    assert hosts == {f"127.0.0.1:{slow.port}": 5, f"127.0.0.1:{fast.port}": 500}


def test_a_newly_discovered_host_has_its_cap_too(crawl, configured, hosts_file):
    with Site(linked(30)) as found, Site({}) as start:
        start.pages["/"] = f'<a href="{found.url()}">x</a>'
        hosts_file.write_text(f"[hosts.'127.0.0.1:{found.port}']\nmax_pages = 4\n")
        scope = tuple(f"127.0.0.1:{site.port}" for site in (start, found))
        crawl(configured(start.url(), include_hosts=scope), "c1")
        assert len([path for path in found.paths() if path in linked(30)]) == 4


def test_generate_applies_the_hosts_file():
    settings = {"*.a.example": HostSettings(max_pages=3), "slow.a.example": HostSettings(delay_s=300.0, max_pages=30)}
    policy = Policy(HostsFile(deny=("bad.a.example",), hosts=settings))
    names = ("x.a.example", "slow.a.example", "bad.a.example", "b.example")
    urls = [url_row(f"http://{name}/{n}") for name in names for n in range(40)]
    found = chosen(urls, policy=policy, time_box_s=1200)
    counts = {name: sum(url.split("/")[2] == name for url in found) for name in names}
    assert counts == {"x.a.example": 3, "slow.a.example": 4, "bad.a.example": 0, "b.example": 40}


def test_pauses_below_a_second_need_loopback():
    from tasks.stages.crawl.hosts.politeness import Politeness

    policy = Policy(HostsFile(hosts={"a.example": HostSettings(delay_s=0.1), "b.example": HostSettings(delay_s=2.0)}))
    hosts = Politeness(CrawlConfig(contact="mailto:a@b.example", delay_s=5.0), policy=policy)
    assert [hosts.host(f"{one}.example").floor_s for one in "abc"] == [1.0, 2.0, 5.0]


SECRETS = ("s3cret-token", "s3cret-session", "s3cret-renewed")


@pytest.fixture
def guarded(hosts_file, tmp_path, monkeypatch):
    """A site that requires a header and a cookie; returns it with the text of its settings."""

    def page(request):
        if request.headers.get("Authorization") != SECRETS[0] or request.cookies.get("session") != SECRETS[1]:
            return web.Response(status=403)
        renewed = {"Set-Cookie": f"session={SECRETS[2]}; HttpOnly"}
        return web.Response(text="inside <a href=/away>x</a>", content_type="text/html", headers=renewed)

    monkeypatch.setenv("WIKI_TOKEN", SECRETS[0])
    (tmp_path / "session").write_text(SECRETS[1] + "\n")
    with Site({"/": page}) as site:
        settings = (
            f"[hosts.'127.0.0.1:{site.port}']\nover_http = true\naccept_language = 'de'\n"
            f"headers = {{ Authorization = 'env:WIKI_TOKEN' }}\ncookies = {{ session = 'file:{tmp_path}/session' }}\n"
        )
        hosts_file.write_text(settings)
        yield site


def test_credentials_reach_only_their_host_and_are_not_stored(crawl, configured, guarded, caplog):
    with Site({"/": "public", "/landed": "landed"}) as other:
        guarded.pages["/away"] = lambda _: web.Response(status=302, headers={"Location": other.url("/landed")})
        scope = tuple(f"127.0.0.1:{site.port}" for site in (guarded, other))
        cycle = crawl(configured(guarded.url(), other.url(), include_hosts=scope), "c1")
        assert "/landed" in other.paths()
        for _, headers in other.headers:
            assert "Authorization" not in headers
            assert "Cookie" not in headers
            assert "Accept-Language" not in headers
    assert all(headers.get("Authorization") == SECRETS[0] for _, headers in guarded.headers)
    assert all(headers["Accept-Language"] == "de" for _, headers in guarded.headers)
    assert cycle.log()[guarded.url()]["status"] == "fetch_success"
    held = all_bytes([cycle.seeds, *cycle.fetchlists, *cycle.segments, *cycle.crawldb, cycle.warc])
    assert not [secret for secret in SECRETS if secret.encode() in held or secret in caplog.text]
    assert b"Authorization: [redacted]" in held
    assert b"Cookie: [redacted]" in held
    assert b"Accept-Language: de" in held
    assert b"env:WIKI_TOKEN" in held
    with cycle.segments[0].open(cycle.segments[0].files("warc/")[0]) as file:
        assert {capture.url for capture in archive.captures(file)} == {guarded.url(), other.url(), other.url("/landed")}


def test_a_robots_redirect_to_another_host_is_followed_without_credentials(crawl, configured, guarded):
    with Site({"/": "public"}) as other:
        other.robots = lambda _: web.Response(status=302, headers={"Location": guarded.url("/theirs")})
        scope = tuple(f"127.0.0.1:{site.port}" for site in (guarded, other))
        crawl(configured(guarded.url(), other.url(), include_hosts=scope), "c1")
    sent = dict(guarded.headers)
    assert "Authorization" not in sent["/theirs"]
    assert "Cookie" not in sent["/theirs"]
    assert sent["/robots.txt"]["Authorization"] == SECRETS[0]


def test_credentials_are_not_sent_over_http_unless_allowed(crawl, configured, guarded, hosts_file):
    hosts_file.write_text(hosts_file.read_text().replace("over_http = true", ""))
    with pytest.raises(InputError, match="http_403"):
        crawl(configured(guarded.url()), "c1")
    assert all("Authorization" not in headers and "Cookie" not in headers for _, headers in guarded.headers)


def test_missing_credentials_fail_only_their_partition(run_stage, configured, guarded, monkeypatch):
    monkeypatch.delenv("WIKI_TOKEN")
    cycle = Cycle(run_stage, configured(guarded.url()))
    with pytest.raises(InputError, match=r"Authorization for 127\.0\.0\.1:\d+ is not found at env:WIKI_TOKEN"):
        cycle.fetch_all()
    assert guarded.requests == []
    policy = Policy.of(cycle.config, cycle.fetchlists[0])
    policy.load_credentials(lambda host: False)
    assert policy.headers_for(guarded.url()).secret == frozenset()


@pytest.mark.parametrize("value", ["", "two\nlines", "caf\xe9", "a\x00b"])
def test_an_invalid_header_value_is_refused_without_being_shown(value, tmp_path):
    (tmp_path / "value").write_text(value)
    file = HostsFile(hosts={"a.example": HostSettings(headers={"X-Key": f"file:{tmp_path}/value"})})
    with pytest.raises(InputError, match=r"X-Key for a\.example at file:.* is not a valid header value") as caught:
        Policy(file).load_credentials(lambda host: True)
    assert not value or value not in str(caught.value)


def test_a_resumed_fetch_uses_the_settings_of_its_cycle(run_stage, configured, hosts_file):
    hosts_file.write_text("[hosts.'a.localhost']\nmax_pages = 5\n")
    cycle = Cycle(run_stage, configured("http://a.localhost/"))
    hosts_file.write_text("deny = ['b.localhost']\n[hosts.'a.localhost']\nmax_pages = 50\n")
    policy = Policy.of(cycle.config, cycle.fetchlists[0])
    assert policy.max_pages("a.localhost", 500) == 5
    assert policy.denies("b.localhost")
