import json
from datetime import UTC, date, datetime
from itertools import combinations, permutations, product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import link
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.traps import MAX_COPIES, MAX_DATES, MAX_EMPTY_DATES, Traps
from tasks.stages.crawl.page.reading import is_soft_404
from tasks.stages.crawl.storage.fetchlist import EarlierCapture


def traps(**settings):
    return Traps(CrawlConfig(**settings), today=date(2026, 11, 21))


def reasons(detector, urls):
    """Returns the results of `refuses` for URLs of one host, in order."""
    return [detector.refuses(link(canonical(url, "https://h.example/"))) for url in urls]


def months(first, last):
    return ((year, month) for year in range(first, last + 1) for month in range(1, 13))


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november")
MONTHS += ("december",)

HONEST = {
    "documentation": [
        f"/{version}/{part}/{page}.html"
        for version in ("2.7", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "latest")
        for part in ("library", "library/asyncio", "reference", "c-api")
        for page in range(80)
    ],
    "blog": [f"/{year}/" for year in range(2001, 2027)]
    + [f"/{year}/{month:02}/" for year, month in months(2001, 2026)]
    + [f"/{year}/{month:02}/{day:02}/post-{day}/" for year, month in months(2001, 2026) for day in (1, 9, 28)],
    "shop": [f"/shop?facet{number}=value" for number in range(50)]
    + [f"/shop?facet{a}=value&facet{b}=value" for a, b in combinations(range(14), 2)]
    + [f"/product/{number}?variant={variant}" for number in range(400) for variant in ("s", "m", "l")],
    "forum": [f"/viewtopic.php?f={number % 20}&t={number}" for number in range(900)]
    + [f"/viewtopic.php?f=3&t=77&start={start}" for start in range(0, 2000, 25)],
    "list": [f"/articles?start={start}" for start in range(1980, 2900, 10)],
    "wiki": [f"/index.php?title=Page_{number}" for number in range(900)],
    "profiles": [
        f"/{page}?user={user:032x}"
        for user in range(2**100, 2**100 + 80)
        for page in ("posts", "photos", "friends", "about")
    ],
    "ids": [f"/{number:08x}-{number:024x}/{page}" for number in range(2**30, 2**30 + 200) for page in "abcd"],
    "projects": [f"/projects/{number}/settings" for number in range(1990, 2900)],
    "topics": [f"/viewtopic.php?t={number}" for number in range(1_700_000_000, 1_700_000_900)],
    "offsets": [f"/members?offset={number}" for number in range(0, 20_000, 25)],
    "course": [f"/course{number}?week={week}" for number in range(9) for week in range(1, 53)],
    "searches": [f"/search?q={month}+{year}" for month in MONTHS for year in range(2030, 2100)],
    "journal": [f"/issue/{year}/{month}/" for year in range(1995, 2027) for month in MONTHS],
    "magazine": [
        f"/{month}-{year}/article-{number}" for year in range(1950, 2027) for month in MONTHS for number in "ab"
    ],
    "numbers": [f"/news/{number}" for number in range(20_260_101, 20_330_101, 71)],
    "releases": [f"/release-notes/{year}-{month:02}" for year, month in months(1995, 2026)],
}


@pytest.mark.parametrize("site", HONEST)
def test_an_ordinary_site_is_crawled_completely(site):
    assert set(reasons(traps(), HONEST[site])) == {""}


def test_fewer_than_one_in_200_links_of_real_pages_is_refused(shared_data):
    file = str(shared_data / "urls" / "real_links.jsonl.zst")
    rows = [json.loads(line) for line in pa.input_stream(file, compression="zstd").read().splitlines()]
    urls = dict.fromkeys(url for row in rows if (url := canonical(row["href"], row["base"])))
    detector = traps()
    refused = [url for url in urls if detector.refuses(link(url))]
    assert len(urls) > 5000
    assert len(refused) < len(urls) / 200


def test_a_growing_path_is_refused_at_its_third_repetition():
    urls = ["/docs/" + "guide/" * times for times in range(1, 6)]
    assert reasons(traps(), urls) == ["", "", "trap_path", "trap_path", "trap_path"]


@pytest.mark.parametrize(
    "form",
    [
        "/events/{0}/{1:02}",
        "/events/{0}-{1:02}/",
        "/events/{0}-{1:02}-01/list",
        "/cal?month={0}-{1:02}",
        "/cal?y={0}&m={1}",
        "/cal?m={0}{1:02}",
        "/cal.php?view=x&date={0}{1:02}28",
        "/day/{0}{1:02}28",
        "/archive/{0}{1:02}.html",
        "/cal?month={0}-{1:02}-01T00%3A00",
    ],
)
def test_a_calendar_is_followed_from_1990_to_next_year(form):
    assert set(reasons(traps(), [form.format(*month) for month in months(2025, 2027)])) == {""}
    detector = traps()
    answers = reasons(detector, [form.format(*month) for month in months(2026, 2060)])
    assert answers.index("trap_calendar") == 24
    assert set(answers[24:]) == {"trap_calendar"}
    assert set(reasons(detector, [form.format(*month) for month in months(1950, 1989)])) == {"trap_calendar"}


def epoch(year, month):
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    "form",
    [
        "/2026/events/{year}/{name}/",
        "/events/{year}-{name}",
        "/events/{year}/{short}/05",
        "/events/{name}-{year}.html",
        "/events/01-{short}-{year}",
        "/kalender/{german}_{year}",
        "/cal?month={name}-{year}",
        "/cal?month={year}{short}",
        "/cal?cal_date={short}+{year}",
        "/cal?time={seconds}",
        "/cal?view=week&from={seconds}000&lang=en",
        "/week/{year}-W{month:02}",
        "/plan/{year}/week/{month}",
        "/plan/{year}/W{month:02}/list",
        "/cal?week={year}-W{month:02}",
        "/cal?w={year}W{month:02}-1",
        "/day/{year}{month:02}28/",
    ],
)
def test_calendars_in_every_format_end_with_next_year(form):
    def pages(first, last):
        german = ("Januar", "Februar", "M%C3%A4rz", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober")
        german += ("November", "Dezember")
        return [
            form.format(
                year=year,
                month=month,
                name=MONTHS[month - 1],
                short=MONTHS[month - 1][:3].title(),
                german=german[month - 1],
                seconds=epoch(year, month),
            )
            for year, month in months(first, last)
        ]

    assert set(reasons(traps(), pages(2025, 2027))) == {""}
    answers = reasons(traps(), pages(2026, 2060))
    assert answers.index("trap_calendar") == 24
    assert set(answers[24:]) == {"trap_calendar"}
    days = reasons(traps(max_queries_per_path=10_000), dict.fromkeys(pages(1990, 2027)))
    assert days == [""] * min(len(days), MAX_DATES) + ["trap_calendar"] * (len(days) - MAX_DATES)


@pytest.mark.parametrize(
    ("form", "step", "ahead"),
    [
        ("/cal?week={}", 1, 78),
        ("/cal?month={}", 1, 18),
        ("/cal?view=x&offset={}", 7, 547),
        ("/cal?day={}&z", 7, 547),
        ("/cal?week_offset={}", 1, 78),
        ("/cal?year={}", 1, 1),
    ],
)
def test_offsets_from_today_end_as_dates_do(form, step, ahead):
    after = [form.format(f"+{number}") for number in range(step, 4000, step)]
    answers = reasons(traps(max_queries_per_path=10_000), [form.format(-1), form.format(-2), form.format(-3), *after])
    assert answers[3:].index("trap_calendar") in range(ahead // step - 1, ahead // step + 2)
    assert answers[-1] == "trap_calendar"
    before = reasons(traps(), [form.format(f"-{number}") for number in range(step, 30_000, step)])
    assert before[:20] == [""] * 20
    assert before[-1] == "trap_calendar"


def test_months_and_weeks_without_a_sign_are_offsets_beyond_a_year():
    detector = traps(max_queries_per_path=10_000)
    assert set(reasons(detector, [f"/cal?month={number}" for number in range(1, 18)])) == {""}
    assert set(reasons(detector, [f"/cal?month={number}" for number in range(40, 900)])) == {"trap_calendar"}


def test_a_number_outside_the_years_of_a_calendar_is_not_a_date():
    assert set(reasons(traps(), [f"/parts/{number}-07" for number in range(2100, 2900)])) == {""}


def test_the_days_of_one_calendar_are_capped():
    days = [f"/events?day={year}-{month:02}-{day:02}" for year, month in months(2000, 2026) for day in range(1, 29)]
    config = {"max_queries_per_path": 10_000}
    answers = reasons(traps(**config), days)
    assert answers[:MAX_DATES] == [""] * MAX_DATES
    assert set(answers[MAX_DATES:]) == {"trap_calendar"}
    # Another calendar has its own days.
    assert reasons(traps(**config), [*days[:MAX_DATES], "/concerts?day=2026-01-01"])[-1] == ""


def test_combinations_of_filters_are_capped():
    values = [("red", "blue", "green"), ("s", "m", "l"), ("new", "old"), ("up", "down"), ("10", "50", "all")]
    urls = [f"/shop?color={a}&size={b}&state={c}&sort={d}&show={e}" for a, b, c, d, e in product(*values)]
    detector = traps(max_queries_per_path=20)
    answers = reasons(detector, urls)
    assert 20 <= answers.count("") <= 20 + 13  # every value once, and 20 combinations
    assert set(answers) == {"", "trap_queries"}
    assert reasons(detector, ["/other?color=red", "/shop?page=2"]) == ["", ""]
    assert detector.scores() == {"h.example": answers.count("trap_queries")}


def test_values_of_one_path_are_capped_too():
    answers = reasons(traps(max_queries_per_path=5), [f"/list?page={number}" for number in range(60)])
    assert answers == [""] * 50 + ["trap_queries"] * 10


LETTERS = str.maketrans("0123456789", "abcdefghij")


def count_followed(detector, urls, links=lambda url: (), title=lambda url: "Calendar"):
    """Returns how many of `urls` are not refused; links and title of each are learned before the next one."""
    count = 0
    for url in (canonical(url, "https://h.example/") for url in urls):
        if not detector.refuses(link(url)):
            count += 1
            detector.learn(url, title(url), [link(canonical(to, url)) for to in links(url)])
    return count


def days(form):
    return [
        form.format(f"{year}{month:02}{day:02}", stamp=int(datetime(year, month, day, tzinfo=UTC).timestamp()))
        for year, month in months(2000, 2026)
        for day in range(1, 29)
    ]


@pytest.mark.parametrize("form", ["/day/{0}", "/cal?date={0}", "/cal?ts={stamp}", "/cal?from={stamp}000"])
def test_a_calendar_with_empty_pages_is_abandoned_soon(form):
    settings, urls = {"max_queries_per_path": 10_000}, days(form)[:700]
    furniture = ["/", "/about", urls[0], urls[-1]]
    assert count_followed(traps(**settings), urls, lambda url: furniture) == MAX_EMPTY_DATES + 1
    dated = (f"On Monday 5th of May 2026: {number}" for number in range(len(urls)))
    assert (
        count_followed(traps(**settings), urls, lambda url: furniture, lambda url: next(dated)) == MAX_EMPTY_DATES + 1
    )


def test_a_calendar_with_new_links_or_titles_is_crawled_up_to_the_cap():
    urls = days("/day/{0}")[:700]
    assert count_followed(traps(), urls, lambda url: [f"/story{url[-8:].translate(LETTERS)}"]) == MAX_DATES
    assert count_followed(traps(), urls, title=lambda url: f"A day {url[-8:].translate(LETTERS)}") == MAX_DATES
    # An event a month is enough.
    assert count_followed(traps(), urls, lambda url: [f"/event{url[-8:-2].translate(LETTERS)}"]) == MAX_DATES


@pytest.mark.parametrize("value", ["a1b2c3d4", "ABCDEF1234567890", "x7_zz-81", "1234567890"])
@pytest.mark.parametrize("name", ["sid", "session_id", "sess", "visitor_id"])
def test_a_session_parameter_is_crawled_with_one_value(name, value):
    detector = traps()
    urls = [f"/page/{page}?{name}={value}{number:02}&lang=en" for number in range(40) for page in range(3)]
    assert reasons(detector, urls).count("") == 3
    assert reasons(detector, ["/page/9?lang=en"]) == [""]


def test_a_cache_busting_parameter_is_crawled_with_one_value():
    for form in ("/news?_={}", "/news?nocache={}", "/news?ts={}&a=1", "/news?rnd=0.{}"):
        urls = [form.format(1_790_000_000 + 7 * number) for number in range(90)]
        assert reasons(traps(), urls).count("") == 1


def test_stories_and_topics_with_short_numbers_called_sid_are_pages():
    urls = [f"/article.php?sid={number}" for number in range(1, 900)]
    urls += [f"/index.php?session={word}" for word in ("spring", "autumn", "keynote")]
    assert set(reasons(traps(), urls)) == {""}


def test_the_same_fields_in_another_order_are_the_same_page():
    fields = ("a=1", "b=2", "c=3", "d=4")
    answers = reasons(traps(), [f"/list?{'&'.join(order)}" for order in permutations(fields)])
    assert answers == [""] + ["trap_queries"] * 23
    # Fields of one name are a list, in its own order.
    assert reasons(traps(), ["/list?f=1&f=2", "/list?f=2&f=1", "/list?f=1&g=2&f=2"]) == ["", "", ""]


def visits(number):
    """A site that assigns a session id to every visitor, and writes it into all links."""
    return [f"/page/{page}?visit={number:012x}deadbeef4711&lang=en" for page in range(30)]


def test_session_ids_are_detected_by_their_propagation():
    detector = traps()
    answers = [answer for number in range(100) for answer in reasons(detector, visits(number))]
    assert answers.count("") < 15 * 30
    assert set(answers[-1000:]) == {"trap_session"}
    # A page that was not fetched under any id is fetched once.
    assert reasons(detector, ["/page/99?visit=0123456789abcdef0123", "/page/99?visit=f123456789abcdef0123"]) == [
        "",
        "trap_session",
    ]


def test_session_ids_in_the_path_are_detected_too():
    detector = traps()
    urls = [f"/(S({number:024x}))/page{page}.aspx" for number in range(50) for page in range(12)]
    answers = reasons(detector, urls)
    assert set(answers[-300:]) == {"trap_session"}


def test_a_parameter_without_effect_is_crawled_with_one_value():
    detector = traps()
    urls = [f"https://h.example/a?ref={number}&page=1" for number in range(8)]
    reasons(detector, urls)
    assert [detector.note(url, "sha1:SAME").follow for url in urls[:4]] == [True] * MAX_COPIES + [False]
    assert reasons(
        detector, ["/a?ref=77&page=1", "/a?ref=78&page=1", "/a?ref=79&page=2", "/a?ref=80&page=2", "/b?ref=1"]
    ) == [
        "",
        "trap_session",
        "",
        "trap_session",
        "",
    ]


def test_hosts_of_a_domain_are_capped():
    detector = traps(max_hosts_per_domain=3)
    hosts = ["a", "b", "a", "c", "d", "b", "e"]
    answers = [detector.refuses(link(f"https://{host}.example.org/{place}")) for place, host in enumerate(hosts)]
    assert answers == ["", "", "", "", "trap_hosts", "", "trap_hosts"]
    assert detector.refuses(link("https://other.example.com/")) == ""
    assert detector.scores() == {"a.example.org": 2}


def test_a_payload_repeated_at_many_urls_of_a_host_is_not_a_page():
    detector = traps()
    first = EarlierCapture("https://h.example/0", datetime(2026, 11, 24, tzinfo=UTC), "urn:uuid:1", "sha1:A")
    answers = [detector.note(first.url, "sha1:A")]
    detector.keep(first)
    answers += [detector.note(f"https://h.example/{number}", "sha1:A") for number in range(1, 5)]
    assert answers == [("", True), ("duplicate", True), ("duplicate", True), ("duplicate", False), ("duplicate", False)]
    assert detector.original("https://h.example/4", "sha1:A") == first
    assert detector.original(first.url, "sha1:A") is None
    assert detector.note("https://other.example/", "sha1:A").reason == ""
    assert detector.note("https://h.example/x", "sha1:B").reason == ""
    assert {detector.note(f"https://h.example/{number}", "").reason for number in range(9)} == {""}


@pytest.mark.parametrize(
    "title",
    [
        "404",
        "404: Page not found | Example",
        "Page Not Found",
        "Example - Error 404",
        "Sorry, this page does not exist",
        "Seite nicht gefunden – Beispiel",
        "Página no encontrada",
        "Página não encontrada",
        "Page introuvable",
        "Pagina non trovata",
        "Pagina niet gevonden",
        "Strona nie została znaleziona",
        "Страница не найдена",
        "Сторінку не знайдено",
        "Stránka nenalezena",
        "Sidan hittades inte",
        "Sayfa bulunamadı",
        "ページが見つかりません",
        "页面不存在",
        "找不到页面",
        "페이지를 찾을 수 없습니다",
        "الصفحة غير موجودة",
        "Halaman tidak ditemukan",
        "Không tìm thấy trang",
    ],
)
def test_a_short_page_titled_not_found_is_a_soft_404(title):
    assert is_soft_404(title, 200)
    assert traps().note("https://h.example/", "sha1:A", title, 200) == ("soft_404", False)
    assert not is_soft_404(title, 1024)
    assert not is_soft_404(title, 200, status=404)


@pytest.mark.parametrize(
    "title",
    ["", "Peugeot 404", "Room 404", "Lost and Found", "How to handle 404s", "Bus line 404 timetable", "Foundation"],
)
def test_a_short_page_with_another_title_is_a_page(title):
    assert not is_soft_404(title, 10)


def test_memory_per_host_is_bounded():
    detector = traps(max_pages_per_host=1)
    for number in range(30_000):
        detector.refuses(link(f"https://h.example/p{number}?x{number}={number:020}&b=2026-01-01"))
        detector.note(f"https://h.example/{number}?a", f"sha1:{number}")
        detector.keep(
            EarlierCapture(f"https://h.example/{number}", datetime(2026, 11, 24, tzinfo=UTC), "", f"sha1:{number}")
        )
        detector.learn(f"https://h.example/p{number % 7}?b=2026-01-01", f"{number}".translate(LETTERS), ())
    (host,) = detector._hosts.values()
    entries = sum(
        len(part)
        for part in (host.paths, host.dates, host.ids, host.sessionless, host.copies, host.originals, host.first)
    )
    entries += sum(len(calendar.content) for calendar in host.dates.values())
    entries += sum(len(path.orders) for path in host.paths.values())
    assert entries + sum(len(path.values) for path in host.paths.values()) <= 20_000


PIECES = [
    "/",
    "?",
    "&",
    "=",
    ";",
    "2026",
    "-01",
    "/01",
    "1700000000",
    "a",
    "(S(",
    ")",
    "list",
    ".html",
    "id",
    "0" * 20,
    "%2F",
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=12))
def test_any_url_gets_a_decision(paths):
    detector = traps(max_queries_per_path=1, max_hosts_per_domain=1)
    for url in dict.fromkeys(canonical(f"http://h.example/{path}") for path in paths):
        assert detector.refuses(link(url)) in ("", "trap_path", "trap_calendar", "trap_queries", "trap_session")
        assert detector.note(url, url[-3:]).reason in ("", "duplicate")


def test_decisions_depend_only_on_the_order_of_urls():
    urls = [url for site in HONEST.values() for url in site[:300]] + [
        url for number in range(20) for url in visits(number)
    ]
    assert reasons(traps(max_queries_per_path=10), urls) == reasons(traps(max_queries_per_path=10), urls)
