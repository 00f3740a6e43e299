"""The web of the crawl benchmark is deterministic, complete, and of the stated size."""

import gzip

from benchmarks.crawl_web import Shape, make
from tasks.formats.web.robots import Robots
from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import parse_page

SHAPE = Shape(hosts=2, pages_per_host=30)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def html_of(folder, page):
    return gzip.decompress((folder / f"{page}{'index.html' if page.endswith('/') else ''}.gz").read_bytes())


def test_the_web_is_the_same_every_time(tmp_path):
    assert make(tmp_path / "one", SHAPE) == make(tmp_path / "two", SHAPE)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_exactly_the_pages_of_the_site_are_reachable_from_its_front_pages(tmp_path):
    web = make(tmp_path, SHAPE)
    waiting = [f"{host}/" for host in web.hosts]
    found = set(waiting)
    while waiting:
        page = waiting.pop()
        host = page.partition("/")[0]
        rules = Robots((tmp_path / host / "robots.txt").read_bytes(), "sluice")
        for link in parse_page(html_of(tmp_path, page), f"http://{page}", "sluice", Directives()).links:
            name = link.url.removeprefix("http://")
            if link.host in web.hosts and rules.allows(link.url) and name not in found:
                found.add(name)
                waiting.append(name)
    assert sorted(found) == web.pages
    assert len(web.pages) == SHAPE.hosts * SHAPE.pages_per_host


def test_the_largest_page_and_the_mean_are_those_of_the_files(tmp_path):
    web = make(tmp_path, SHAPE)
    sizes = {page: len(html_of(tmp_path, page)) for page in web.pages}
    assert sizes[web.largest] == max(sizes.values())
    assert web.mean == round(sum(sizes.values()) / len(sizes))
