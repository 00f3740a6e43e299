"""Four sites modeled on real ones, served on loopback: pages to capture, and URLs to refuse."""

import itertools
import re
from collections import Counter
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web

from tasks.stages.crawl.config import CrawlConfig
from tests.tasks.stages.crawl.site import Site

WORDS = ("harbour", "tide", "rope", "anchor", "buoy", "crane", "quay", "hull", "keel", "mast", "sail", "wind", "lock")
WORDS += ("chart", "pilot", "cargo")


class Made(dict):
    """Pages computed from the raw path and query; None is a 404."""

    def __init__(self, make, charset="utf-8"):
        super().__init__()
        self._make, self._charset = make, charset

    def get(self, path, default=None):
        return self._answer

    def _answer(self, request):
        path, _, query = request.raw_path.partition("?")
        page = self._make(path, query)
        if page is None:
            return web.Response(status=404, text="not here")
        if isinstance(page, web.Response):
            return page
        body = page.encode(self._charset, "xmlcharrefreplace")
        return web.Response(body=body, headers={"Content-Type": f"text/html; charset={self._charset}"})


def text(seed, count=60):
    """Words that differ from page to page."""
    return " ".join(f"{WORDS[(seed * 7 + place) % 16]}{(seed * 31 + place * place) % 97}" for place in range(count))


def crawled(crawl, site, **settings):
    """The rows of the fetch log by path and query."""
    limits = {"max_pages": 3000, "max_pages_per_host": 3000, "max_pages_per_domain": 3000, "partitions": 1}
    config = CrawlConfig(
        seeds=(site.url(),), allow_loopback=True, delay_s=0.0, latency_factor=0.0, **{**limits, **settings}
    )
    log = crawl(config).log()
    reasons = {row["reason"] for row in log.values()}
    assert "poison" not in reasons
    return {url.removeprefix(site.url("")): row for url, row in log.items()}


def kept(rows):
    return {path for path, row in rows.items() if row["reason"] == "" and row["requested"]}


def refused(rows, reason):
    return {path for path, row in rows.items() if row["reason"] == reason}


# --- a forum like phpBB: every visit gets an id in all links, every post a permalink, every topic pages.

FORUMS, TOPICS, POSTS, PER_PAGE = 3, 8, 23, 10
VISITS = itertools.count(1)


def forum(path, query):
    fields = dict(parse_qsl(query))
    sid = f"&amp;sid={next(VISITS):032x}"
    foot = f"<a href='/ucp.php?mode=login{sid}'>Login</a> <a href='/index.php?x=1{sid}'>Board index</a>"
    if path in ("/", "/index.php"):
        links = "".join(f"<a href='/viewforum.php?f={number}{sid}'>Forum {number}</a>" for number in range(FORUMS))
        return f"<title>Board</title><p>{text(1)}{links}{foot}"
    if path == "/viewforum.php":
        number = int(fields["f"])
        topics = range(number * TOPICS, (number + 1) * TOPICS)
        links = "".join(f"<a href='/viewtopic.php?f={number}&amp;t={topic}{sid}'>Topic {topic}</a>" for topic in topics)
        return f"<title>Forum {number}</title><p>{text(100 + number)}{links}{foot}"
    if path == "/viewtopic.php":
        if "p" in fields:
            topic, post = divmod(int(fields["p"]), POSTS)
            start = post // PER_PAGE * PER_PAGE
        else:
            topic, start = int(fields["t"]), int(fields.get("start", 0))
        if start >= POSTS or topic >= FORUMS * TOPICS:
            return None
        posts = range(start, min(start + PER_PAGE, POSTS))
        own = "".join(
            f"<p>{text(topic * POSTS + post)} <a href='/viewtopic.php?p={topic * POSTS + post}{sid}#p{post}'>#</a>"
            f"<a href='/posting.php?mode=quote&amp;p={topic * POSTS + post}{sid}'>Quote</a>"
            for post in posts
        )
        pages = "".join(
            f"<a href='/viewtopic.php?f={topic // TOPICS}&amp;t={topic}&amp;start={other}{sid}'>{other}</a>"
            for other in range(PER_PAGE, POSTS, PER_PAGE)
        )
        return f"<title>Topic {topic}</title>{own}{pages}{foot}"
    # Without a login the same form is everywhere.
    return f"<title>Login</title><p>{text(2)}<form action=/ucp.php><input name=password></form>"


def test_every_topic_page_of_a_forum_is_captured_once_without_session_urls(crawl):
    with Site(Made(forum)) as site:
        rows = crawled(crawl, site, max_queries_per_path=200)
    topics = {
        f"/viewtopic.php?f={topic // TOPICS}&t={topic}" + (f"&start={start}" if start else "")
        for topic in range(FORUMS * TOPICS)
        for start in range(0, POSTS, PER_PAGE)
    }
    assert topics <= kept(rows)
    assert {f"/viewforum.php?f={number}" for number in range(FORUMS)} <= kept(rows)
    assert not any("sid=" in path for path in rows), "an id of a visit was asked for"
    # The login form is at hundreds of URLs and kept once.
    assert sum(path.startswith(("/posting.php", "/ucp.php")) for path in kept(rows)) <= 3
    assert len(refused(rows, "duplicate")) > 100


# --- a shop: combinable facets, sort orders, tracking, a basket forbidden by robots.txt.

FACETS = {"colour": ("red", "blue", "green"), "size": ("s", "m", "l"), "brand": ("ax", "bo"), "sort": ("price", "new")}
CATEGORIES, PRODUCTS, PER_LIST = ("boots", "coats"), 60, 12


def shop(path, query):
    fields = dict(parse_qsl(query))
    if path == "/":
        return "<title>Shop</title>" + "".join(
            f"<a href='/{name}?utm_source=home&amp;utm_campaign=x'>{name}</a>" for name in CATEGORIES
        )
    category = path.strip("/")
    if category in CATEGORIES:
        links = []
        for facet, values in FACETS.items():
            for value in values:
                wanted = {**fields, facet: value}
                wanted.pop("page", None)
                links.append("&amp;".join(f"{name}={one}" for name, one in wanted.items()))
        page = int(fields.get("page", 1))
        base = CATEGORIES.index(category) * PRODUCTS
        shown = range(base + (page - 1) * PER_LIST, base + min(page * PER_LIST, PRODUCTS))
        products = "".join(f"<a href='/p/{number}?gclid=abc{page}'>{text(number, 3)}</a>" for number in shown)
        pages = "".join(
            f"<a href='/{category}?page={number}'>{number}</a>" for number in range(2, PRODUCTS // PER_LIST + 1)
        )
        facets = "".join(f"<a href='/{category}?{link}'>facet</a>" for link in links)
        return f"<title>{category} {query}</title><p>{text(hash_of(query))}{products}{pages}{facets}"
    found = re.fullmatch(r"/p/(\d+)", path)
    if found:
        number = int(found[1])
        return (
            f"<title>Product {number}</title><link rel=canonical href=/p/{number}><p>{text(number)}"
            f"<a href='/basket/add?id={number}'>Buy</a><a href='/p/{number}?variant=2'>Other</a>"
        )
    return None


def hash_of(query):
    return sum(query.encode()) % 1000 + 200


def test_every_product_of_a_shop_is_captured_and_facets_are_bounded(crawl):
    with Site(Made(shop), "User-agent: *\nDisallow: /basket/") as site:
        rows = crawled(crawl, site, max_queries_per_path=20)
        asked = site.paths()
    assert {f"/p/{number}" for number in range(len(CATEGORIES) * PRODUCTS)} <= kept(rows)
    assert {f"/{name}?page={page}" for name in CATEGORIES for page in range(2, 6)} <= kept(rows)
    assert not any("utm_" in path or "gclid" in path for path in rows)
    assert not any(path.startswith("/basket") for path in asked)
    assert refused(rows, "robots_denied") == {
        f"/basket/add?id={number}" for number in range(len(CATEGORIES) * PRODUCTS)
    }
    # Every value of a facet once, and a limited number of combinations.
    for name in CATEGORIES:
        assert len([path for path in kept(rows) if path.startswith(f"/{name}?")]) <= 20 + 4 + 10
    assert len(refused(rows, "trap_queries")) > 50


# --- a newspaper in windows-1251: Cyrillic in the queries of its links, an endless calendar, print versions.

RUBRICS = ("Политика", "Экономика", "Спорт", "Культура")
ARTICLES = 40


def newspaper(path, query):
    if path == "/":
        rubrics = "".join(f'<a href="/лента?рубрика={name}">{name}</a>' for name in RUBRICS)
        return f"<title>Газета</title>{rubrics}<a href='/archive/2026-11-22'>Архив</a>"
    if unquote_to_bytes(path) == "/лента".encode():
        name, _, value = unquote_to_bytes(query.replace("+", " ")).partition(b"=")
        # Decoded like the server of such a site: a UTF-8 query matches no section.
        if name.decode("cp1251") != "рубрика" or value.decode("cp1251", "replace") not in RUBRICS:
            return None
        number = RUBRICS.index(value.decode("cp1251"))
        links = "".join(f"<a href='/news/{one}.html'>Статья {one}</a>" for one in range(number, ARTICLES, len(RUBRICS)))
        return f"<title>{RUBRICS[number]}</title><p>{text(number)}</p>{links}"
    if found := re.fullmatch(r"/news/(\d+)\.html", path):
        number = int(found[1])
        if number >= ARTICLES or query not in ("", "print=1"):
            return None
        tag = f'<a href="/лента?рубрика={RUBRICS[number % len(RUBRICS)]}">Рубрика</a>'
        own = f"<p>{'Новости порта. ' * 9}{text(number)}</p>"
        return f"<title>Статья {number}</title><link rel=canonical href=/news/{number}.html>{own}{tag}" + (
            "" if query else f"<a href='/news/{number}.html?print=1'>Печать</a>"
        )
    if found := re.fullmatch(r"/archive/(\d{4})-(\d\d)-(\d\d)", path):
        year, month, day = map(int, found.groups())
        months = "".join(
            f"<a href='/archive/{other // 12}-{other % 12 + 1:02}-{day:02}'>{other}</a>"
            for other in range(year * 12 + month - 7, year * 12 + month + 6)
        )
        return f"<title>Архив {year}-{month}</title><p>{text(year * 12 + month)}{months}"
    return None


def test_a_windows_1251_newspaper_is_captured_and_its_calendar_is_bounded(crawl):
    with Site(Made(newspaper, "windows-1251")) as site:
        rows = crawled(crawl, site, max_depth=300)
    lists = {path for path in kept(rows) if path.startswith("/%D0%BB")}
    assert {unquote_to_bytes(path.partition("?")[2]).decode("cp1251") for path in lists} == {
        f"рубрика={name}" for name in RUBRICS
    }
    assert {f"/news/{number}.html" for number in range(ARTICLES)} <= kept(rows)
    assert not refused(rows, "http_404"), "a query was written in another encoding"
    days = sorted(path for path in kept(rows) if path.startswith("/archive"))
    # Its pages link only to other days: the calendar ends in both directions after about forty days.
    assert 40 <= len(days) <= 60
    refused_days = sorted(refused(rows, "trap_calendar"))
    assert refused_days[0] < days[0] < days[-1] < refused_days[-1]


# --- a wiki like MediaWiki: articles by name, and for each of them edit, history, old versions and differences.

ARTICLE_COUNT, VERSIONS = 30, 6
NOINDEX = "<meta name='robots' content='noindex,nofollow'>"


def wiki(path, query):
    fields = dict(parse_qsl(query))
    name = (
        path.removeprefix("/wiki/")
        if path.startswith("/wiki/")
        else fields.get("title", "")
        if path == "/index.php"
        else ""
    )
    if path == "/":
        return web.Response(status=301, headers={"Location": "/wiki/Page_0"})
    if name == "Special:RecentChanges":
        links = "".join(
            f"<a href='/index.php?title=Special:RecentChanges&amp;days={days}&amp;limit={limit}'>x</a>"
            for days, limit in itertools.product((1, 3, 7, 14, 30), (50, 100, 250, 500))
        )
        return f"<title>Recent changes {query}</title>{NOINDEX}<p>{text(5)}{links}"
    found = re.fullmatch(r"Page_(\d+)", name)
    if not found or int(found[1]) >= ARTICLE_COUNT:
        return None
    number = int(found[1])
    if fields.get("action") in ("edit", "history"):
        old = "".join(
            f"<a href='/index.php?title={name}&amp;oldid={number * VERSIONS + one}'>{one}</a>"
            f"<a href='/index.php?title={name}&amp;diff={number * VERSIONS + one}&amp;oldid=prev'>diff</a>"
            for one in range(VERSIONS)
        )
        return f"<title>{fields['action']} {name}</title>{NOINDEX}<p>{text(number)}{old}"
    if "oldid" in fields or "diff" in fields:
        return f"<title>Old {name} {query}</title>{NOINDEX}<p>{text(number)} {query}"
    others = "".join(f"<a href='/wiki/Page_{one % ARTICLE_COUNT}'>see</a>" for one in (number * 2 + 1, number * 2 + 2))
    tools = "".join(f"<a href='/index.php?title={name}&amp;action={one}'>{one}</a>" for one in ("edit", "history"))
    if "printable" in fields:
        others += "Retrieved from the wiki."
    return (
        f"<title>{name}</title><link rel=canonical href='/wiki/{name}'><p>{text(number)}{others}{tools}"
        f"<a href='/index.php?title={name}'>title</a><a href='/index.php?title={name}&amp;printable=yes'>print</a>"
        "<a href='/wiki/Special:RecentChanges'>changes</a><a href='/wiki/Missing_page'>red</a>"
    )


def test_every_article_of_a_wiki_is_captured_without_history_diffs_and_forms(crawl):
    with Site(Made(wiki)) as site:
        rows = crawled(crawl, site)
        asked = Counter(site.paths())
    assert {f"/wiki/Page_{number}" for number in range(ARTICLE_COUNT)} <= kept(rows)
    assert not any(word in path for path in kept(rows) for word in ("action=", "oldid=", "diff=", "RecentChanges"))
    assert refused(rows, "noindex") == {path for path in rows if "action=" in path or path.endswith(":RecentChanges")}
    # Targets of forms and of nofollow pages are not requested.
    assert not any("oldid=" in path or "days=" in path for path in asked)
    assert refused(rows, "http_404") == {"/wiki/Missing_page"}
    assert max(asked.values()) == 1
