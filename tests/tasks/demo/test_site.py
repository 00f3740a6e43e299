"""The demo's small web: requirements for reproducible crawls."""

import http.client
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from tasks.demo.site import HOSTS, SiteHost, SitePage, load, render_site

pytestmark = pytest.mark.soak  # rendering takes long, and every system test crawls the rendered pages
PORTS = dict(zip(HOSTS, (18701, 18702, 18703), strict=True))
Site = dict[str, dict[str, SitePage]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return load(render_site(tmp_path_factory.mktemp("site")), PORTS)


@pytest.fixture(scope="module")
def topics(site: Site) -> Iterator[http.client.HTTPConnection]:
    """A connection to the running host `topics`."""
    server = SiteHost(0, site["topics"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    yield connection
    connection.close()
    server.shutdown()
    server.server_close()


def get(connection: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read()


def test_three_hosts_have_over_400_pages_with_different_content(site: Site) -> None:
    assert min(len(pages) for pages in site.values()) > 90
    bodies = [page.body for pages in site.values() for page in pages.values()]
    assert len(bodies) > 400
    assert len(set(bodies)) == len(bodies)


def test_rendering_twice_gives_the_same_bytes(site: Site, tmp_path: Path) -> None:
    again = load(render_site(tmp_path), PORTS)
    differing = [(host, path) for host in HOSTS for path in site[host] if again[host].get(path) != site[host][path]]
    assert not differing


def test_every_page_is_linked_from_its_index_and_no_link_is_broken(site: Site) -> None:
    for host, pages in site.items():
        base = f"http://{host}.localhost:{PORTS[host]}/"
        index = links(pages["/"], base)
        assert {urljoin(base, path) for path in pages if path != "/"} <= index
        for path, page in pages.items():
            for link in links(page, urljoin(base, path)):
                there = urlsplit(link)
                if (there.hostname or "").endswith(".localhost") and there.path != "/search":
                    assert there.path in site[str(there.hostname).partition(".")[0]], (host, path, link)


def test_hosts_link_to_each_other_with_their_ports(site: Site) -> None:
    assert "http://packages.localhost:18702/asyncio.events.html" in links(
        site["library"]["/asyncio.html"], "http://library.localhost:18701/asyncio.html"
    )


def test_pages_contain_no_object_address_and_no_local_path(site: Site) -> None:
    leak = re.compile(rb"\bat(?: |&nbsp;)0x[0-9a-f]{8,}|SLUICE_|/site-packages/" + str(Path.home()).encode())
    found = [(host, path) for host in HOSTS for path, page in site[host].items() if leak.search(page.body)]
    assert not found


def test_modules_with_import_side_effects_are_excluded(site: Site) -> None:
    assert not {"/this.html", "/antigravity.html", "/idlelib.idle.html"} & {*site["library"], *site["packages"]}


def test_robots_forbids_computed_pages(topics: http.client.HTTPConnection) -> None:
    status, headers, body = get(topics, "/robots.txt")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b"Disallow: /search" in body
    assert get(topics, "/search?key=lambda")[2].count(b"<li>") == 1


def test_unknown_pages_are_404(topics: http.client.HTTPConnection) -> None:
    assert get(topics, "/no-such-page.html")[0] == 404


def test_a_conditional_request_returns_304(topics: http.client.HTTPConnection) -> None:
    status, headers, body = get(topics, "/lambda.html")
    assert (status, b"anonymous functions" in body) == (200, True)
    assert get(topics, "/lambda.html", If_None_Match=headers["ETag"])[::2] == (304, b"")
    assert get(topics, "/lambda.html", If_Modified_Since=headers["Last-Modified"])[::2] == (304, b"")
    assert get(topics, "/lambda.html", If_None_Match='"other"', If_Modified_Since=headers["Last-Modified"])[0] == 200
    assert get(topics, "/lambda.html", If_Modified_Since="not a date")[0] == 200


def links(page: SitePage, base: str) -> set[str]:
    found = re.findall(rb'href="([^"]+)"', page.body)
    return {urljoin(base, link.decode()).partition("#")[0] for link in found}
