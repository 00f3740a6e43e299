"""Contract of tasks.stages.extract.page_metadata: metadata of a page is read where the page declares it, and never
guessed."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from resiliparse.parse.html import HTMLTree

from benchmarks.page_metadata import read_stated, right
from tasks.stages.extract.metadata.date import parse_time
from tasks.stages.extract.page_metadata import PageMetadata, absolute_url, read_page_metadata

DAY = datetime(2019, 11, 20, tzinfo=UTC)
JSON_LD = '<script type="application/ld+json">'
CC = "https://creativecommons.org/licenses/by-sa/4.0/"


def about(head: str = "", body: str = "", root: str = "", url: str = "") -> PageMetadata:
    return read_page_metadata(HTMLTree.parse(f"<html {root}><head>{head}</head><body>{body}</body></html>"), url)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ('<meta property="article:published_time" content="2019-11-20T00:00:00Z">', ""),
        ('<META NAME="DC.Date.Issued" CONTENT="2019-11-20">', ""),
        ('<meta itemprop="datePublished" content="20191120">', ""),
        ('<meta name="pubdate" content="Wed, 20 Nov 2019 01:00:00 +0100">', ""),
        ('<script type="application/ld+json">{"@type": "NewsArticle", "datePublished": "2019-11-20"}</script>', ""),
        ("", '<script type="application/ld+json">[{"@graph": [{"datePublished": "2019-11-20"}]}]</script>'),
        ("", '<time itemprop="datePublished" datetime="2019-11-20">yesterday</time>'),
        ("", "<time class='x entry-date' datetime='2019-11-20T02:00+02:00'>"),
        ("", "<time pubdate datetime='2019-11-20'>"),
        ("", "<time datetime='2019-11-20'>Wednesday, 20 Nov</time>"),
        ("", "<span class='post-date'>Am 20. November 2019 um 9 Uhr</span>"),
        ("", "<p class=published>November 20th, 2019</p>"),
        ("", "<div class=meta__date>20.11.2019</div>"),
        ("", "<li itemprop=dateCreated>20 de noviembre de 2019</li>"),
        ("", "<p class=date>11/20/2019</p>"),
        ("", "<p class=date>2019年11月20日</p>"),
        ('<meta name="date" content="2019-11-20T00:00:00 UTC">', ""),
        ('<meta name="date" content="2019-11-20 01:00:00 +0100">', ""),
        ('<script type="application/ld+json">{"@type": "VideoObject", "uploadDate": "2019-11-20"}</script>', ""),
        ("", "<h1>The harbour</h1><div><em>Press release of 20 November 2019, London</em></div>"),
        ("", "<form id=aspnetForm><p>Date: 20.11.2019, 11:35</p><h4>The harbour</h4></form>"),
        (
            "",
            "<h4>The harbour</h4><p>· 20 November 2019 · <a>Print this page</a> · <a>Send this page to friends</a></p>",
        ),
    ],
)
def test_the_date_is_read_from_markup_and_elements_named_after_dates(head: str, body: str) -> None:
    assert about(head, body).published == DAY


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("", "<p>The treaty was published on 20 November 2019 in a small town.</p>"),
        ("", "<ol class=commentlist><li><small class=commentmetadata>20 November 2019</small> Nice!</ol>"),
        ("", "<div id=comments><time datetime=2019-11-20>20.11.2019</time></div>"),
        ("", "<div class=comments><p class=date>20.11.2019</div>"),
        ("", "<h1>The harbour</h1><div class=comments>20.11.2019 Bob wrote:</div>"),
        ("", "<time datetime='2019-11-20'>the day of the battle</time>"),
        ("", "<p class=date>11/12/2019</p>"),
        ("", "<p class=date>31.02.2019</p>"),
        ("", "<p class=date>20 Brumaire 2019</p>"),
        ('<meta name="last-update" content="2019-11-20">', ""),
        ('<meta property="article:modified_time" content="2019-11-20">', ""),
        ('<meta name="date" content="20/11/2019">', ""),
        ('<meta name="date" content="0001-01-01T00:00:00">', ""),
        ('<meta name="date" content="1970-01-01">', ""),
        ('<meta name="date">', ""),
        ('<script type="application/ld+json">{"datePublished": "2019-11-20"</script>', ""),
        ('<script type="application/ld+json">{"review": {"datePublished": "2019-11-20"}}</script>', ""),
        ('<script type="application/ld+json">{"datePublished": {"a": 1}}</script>', ""),
        ('<script type="application/ld+json">' + "[" * 100_000 + '"datePublished"</script>', ""),
    ],
)
def test_a_date_is_never_guessed(head: str, body: str) -> None:
    assert about(head, body).published is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example/2019/11/20/title", DAY),
        ("https://a.example/news/2019-11/20/c_1.htm", DAY),
        ("https://a.example/docs/20191120_speech.html", DAY),
        ("https://a.example/2019/13/20/title", None),
        ("https://a.example/2019/43/title", None),
    ],
)
def test_the_date_of_a_page_without_one_is_that_of_its_url(url: str, expected: datetime | None) -> None:
    assert read_page_metadata(HTMLTree.parse("<p>text"), url).published == expected


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ('<meta name="author" content="Eva Roth">', "", "Eva Roth"),
        ('<meta property="article:author" content="https://a.example/eva">', "", ""),
        ('<meta property="og:site_name" content="A Blog"><meta name="author" content="a blog">', "", ""),
        (
            '<meta name="citation_author" content="Roth, E."><meta name="citation_author" content="Li, W.">',
            "",
            "Roth, E.; Li, W.",
        ),
        (
            "",
            '<script type="application/ld+json">{"author": [{"name": "Eva Roth"}, "Wei Li"]}</script>',
            "Eva Roth; Wei Li",
        ),
        (
            "",
            '<script type="application/ld+json">{"@graph": [{"@type": "Person", "@id": "#e", "name": "Eva Roth"}, '
            '{"@type": "Article", "author": {"@id": "#e"}}]}</script>',
            "Eva Roth",
        ),
        ("", "<p class=byline>Text und Fotos: Eva Roth am 3. Mai</p>", "Eva Roth"),
        ("", "<a rel=author href=/eva>By Eva Roth</a><p class=author>Wei Li says", "Eva Roth"),
        ("", "<p class=author>Eva studied many things, has lived in five countries and writes about all of them.", ""),
        ("", "<p class=author>Super User</p>", ""),
        ("", "<h1>The harbour</h1><p>By <a>Eva Roth</a></p>", "Eva Roth"),
        ("", "<h1>The harbour</h1><p>by the way, it is deep</p>", ""),
        ("", "<span class=post-author>Eingestellt von <b>Eva Roth</b></span>", "Eva Roth"),
        (
            "",
            "<p><a rel=author>Eva Roth</a>, <a rel=author>Wei Li</a></p><p><a rel=author>Bo Ek</a></p>",
            "Eva Roth; Wei Li",
        ),
        (
            '<meta name="twitter:label1" content="Verfasst von"><meta name="twitter:data1" content="Eva Roth">',
            "",
            "Eva Roth",
        ),
        ('<meta name="author" content="facebook.com/eva.roth">', "", ""),
        ('<meta name="author" content="www.a.example">', "", ""),
        ('<meta name="author" content="eva@a.example (Eva Roth)">', "", "(Eva Roth)"),
        ('<meta name="author" content="R&amp;amp;D">', "", "R&D"),
        ("", "<p class=author>admin</p>", ""),
        ("", "<p>By Eva Roth</p>", ""),
        ("", '<script type="application/ld+json">{"author": {"@id": "#e", "name": {"a": 1}}}</script>', ""),
    ],
)
def test_authors_are_read_from_markup_and_bylines(head: str, body: str, expected: str) -> None:
    assert about(head, body).author == expected


BOB = "<a rel=author href=/bob>Bob Ray</a>"


@pytest.mark.parametrize(
    "comment",
    [
        f"<div id=comments>{BOB}</div>",
        f"<ol class=commentlist><li>{BOB}</ol>",
        f"<li class='comment hentry'><div><div>{BOB}</div></div></li>",
        f"<div class='leserkommentare'>{BOB}</div>",
        f"<ul class='customer-review-list'><li>{BOB}</ul>",
        f"<div id=disqus_thread>{BOB}</div>",
        "<cite class='comment-author vcard'>Bob Ray</cite><div class=comment-author>Bob Ray</div>",
        "<div itemprop=comment itemscope><span itemprop=author>Bob Ray</span></div>",
        "<div itemscope itemtype='https://schema.org/Comment'><span itemprop=author>Bob Ray</span></div>",
        "<div itemprop=review itemscope><meta itemprop=author content='Bob Ray'></div>",
        "<div itemprop=acceptedAnswer itemscope><span itemprop=author>Bob Ray</span></div>",
        "<h1>The harbour</h1><div class=comments><p>By Bob Ray</p></div>",
        "<p class=author>Bob Ray says:</p>",
        "<p class=author>Bob Ray schrieb:</p>",
        JSON_LD + '{"@type": "Comment", "author": "Bob Ray"}</script>',
        JSON_LD + '{"@graph": [{"@type": ["UserComments"], "author": {"name": "Bob Ray"}}]}</script>',
        JSON_LD + '{"@type": "Article", "comment": [{"@type": "Comment", "author": "Bob Ray"}]}</script>',
        JSON_LD + '[{"@type": "Review", "author": {"@type": "Person", "name": "Bob Ray"}}]</script>',
        JSON_LD + '{"@type": "QAPage", "mainEntity": {"@type": "Answer", "author": "Bob Ray"}}</script>',
    ],
)
def test_the_author_is_never_one_of_a_comment_answer_or_review(comment: str) -> None:
    assert about("", comment).author == ""
    assert about("", comment + "<p class=byline>Eva Roth</p>").author == "Eva Roth"


@pytest.mark.parametrize(
    "name", ["comments-open", "has-comments", "category-reviews", "comments-count", "img-responsive"]
)
def test_a_name_that_only_mentions_comments_hides_no_author(name: str) -> None:
    assert about("", f"<div class='post {name}'><p class=byline>Eva Roth</p></div>").author == "Eva Roth"


def test_a_review_by_a_critic_has_an_author() -> None:
    critic = '{"@type": "Review", "author": "Eva Roth", "publisher": {"name": "Quiet News"}}'
    assert about(f"{JSON_LD}{critic}</script>").author == "Eva Roth"


def test_of_several_dates_the_most_specific_property_and_the_article_win() -> None:
    two = '<meta name="date" content="2001-01-01"><meta property="article:published_time" content="2019-11-20">'
    assert about(two).published == DAY
    site, article = (
        '{"@type": "WebSite", "datePublished": "2001-01-01"}',
        '{"@type": "Article", "datePublished": "2019-11-20"}',
    )
    listed = f"[{site}, {article}]"
    assert about(f'<script type="application/ld+json">{listed}</script>').published == DAY


def test_a_date_at_the_heading_wins_over_the_one_of_another_entry() -> None:
    teaser, own = "<time datetime=2012-02-03>3.2.2012</time>", "<time datetime=2019-11-20T09:30:00>20.11.2019</time>"
    assert about("", f"<ul><li>{teaser}</ul><h1>The harbour</h1><p>20 November 2019</p>").published == DAY
    assert about("", f"<h1>The harbour</h1>{own}<ul><li>{teaser}</ul>").published == DAY.replace(hour=9, minute=30)


LD = '{"@type": "Article", "datePublished": "2019-11-20", "author": "Eva Roth"}'


@pytest.mark.parametrize(
    "script",
    [
        f"<!-- {LD} -->",
        f"<!--\n{LD}\n//-->",
        f"<![CDATA[{LD}]]>",
        f"\n//<![CDATA[\n{LD};\n//]]>\n",
        f"/*<![CDATA[*/\n[{LD}]\n/*]]>*/",
        f'<!--//--><![CDATA[//><!--\n{{"@graph": [{LD}]}}\n//--><!]]>',
        '{"@type": "Article", "datePublished": ["2019-11-20"], "author": ["Eva Roth"]}',
    ],
)
def test_json_ld_in_a_comment_or_cdata_section_is_read(script: str) -> None:
    page = about(f'<script type="application/ld+json">{script}</script>')
    assert (page.published, page.author) == (DAY, "Eva Roth")


FETCHED = datetime(2019, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ('<meta name="date" content="2099-01-01">', "", None),
        ('<meta name="date" content="2099-01-01"><meta name="pubdate" content="2019-11-20">', "", DAY),
        ('<meta name="date" content="2099-01-01">', "<time datetime=2019-11-20 pubdate>", DAY),
        ('<meta name="date" content="2099-01-01">', "<p class=date>20.11.2019</p>", DAY),
        ("", "<p class=date>1 May 2031</p><p class=date>20.11.2019</p>", DAY),
        ('<meta name="date" content="2019-11-21T11:59:59">', "", datetime(2019, 11, 21, 11, 59, 59, tzinfo=UTC)),
        ('<meta name="date" content="2019-11-21T12:00:01">', "", None),
        (f'<script type="application/ld+json">[{LD.replace("2019", "2031")}, {LD}]</script>', "", DAY),
    ],
)
def test_a_date_more_than_a_day_after_the_capture_is_none(head: str, body: str, expected: datetime | None) -> None:
    page = f"<html><head>{head}</head><body>{body}</body></html>"
    assert read_page_metadata(HTMLTree.parse(page), fetched_at=FETCHED).published == expected


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "", "x" * 1000, "\0"])
def test_times_outside_the_calendar_are_none(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        (f"<link rel='license' href='{CC}'>", "", CC),
        ("", f"<p>Text under <a rel='nofollow license' href='{CC}'>this</a>", CC),
        ("", f"<p>Text under <a href='{CC}'>this</a>", CC),
        ("", "<a href='https://creativecommons.org/about/'>what it is</a>", ""),
        ('<meta name="DC.rights" content=" All rights \n reserved ">', "", "All rights reserved"),
        (f'<script type="application/ld+json">{{"@type": "Article", "license": "{CC}"}}</script>', "", CC),
        ("", "<p>licensed to kill</p>", ""),
    ],
)
def test_the_license_is_read_from_links_and_text(head: str, body: str, expected: str) -> None:
    assert about(head, body).licence == expected


def test_a_link_with_rel_license_wins_over_other_license_links() -> None:
    other = "https://creativecommons.org/publicdomain/zero/1.0/"
    assert about("", f"<a href='{other}'>photo</a> <a rel=license href='{CC}'>text</a>").licence == CC


def test_the_canonical_link_is_read_only_in_the_head_and_made_absolute() -> None:
    head, evil = "<base href='/docs/'><link rel='canonical' href='a?b=1'>", "<link rel=canonical href=/evil>"
    found = about(head, evil, url="https://a.example/x/y")
    assert found.canonical == "https://a.example/docs/a?b=1"
    assert about("", evil, url="https://a.example/x/y").canonical == ""


@pytest.mark.parametrize("address", ["", "javascript:void(0)", "mailto:a@b.example", "http://[", "/" + "a" * 3000])
def test_an_invalid_canonical_url_is_none(address: str) -> None:
    assert absolute_url(address, "", "https://a.example/") == ""


def test_the_language_is_read_from_the_root_or_a_meta_tag() -> None:
    meta = '<meta http-equiv="Content-Language" content="de">'
    assert about(meta, root="lang=en-GB").language == "en-GB"
    assert about(meta).language == "de"
    assert about().language == ""


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title>The harbour | Quiet News</title>", "<h1>Quiet News</h1><h1>The harbour</h1>", "The harbour"),
        ("<title>The harbour | Quiet News</title>", "<h1>Boats</h1><h1>THE  harbour</h1>", "THE harbour"),
        ("<title>Harbour - Quiet News</title>", "<h1>What the harbour was like</h1>", "What the harbour was like"),
        (
            "<title>Blog » 17</title><meta property='og:title' content='The harbour'>",
            "<h1>a</h1><h1>b</h1>",
            "The harbour",
        ),
        ("<title>The harbour-master – Quiet News</title>", "", "The harbour-master"),
        ("<title>textwrap - Wrapping</title>", "<h1>textwrap¶</h1>", "textwrap"),
    ],
)
def test_the_title_is_without_the_name_of_the_site(head: str, body: str, title: str) -> None:
    assert about(head, body).title == title


BLOG = '<h1><a href="/">Quiet Days</a></h1>'


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("<title>Quiet Days » Archive » The old harbour</title>", BLOG + "<h2>The old harbour</h2>"),
        ("<title>Quiet Days: The old harbour</title>", "<h1>Quiet Days</h1><h3 class=post-title>The old harbour</h3>"),
        ("<title>Quiet Days: The old harbour</title>", "<h1>Quiet Days</h1><h3>The old harbour</h3><h3>About me</h3>"),
        ("<title>The old harbour - Quiet Days</title>", "<h1>Quiet Days</h1><h2>The old harbour</h2>"),
        ("<title>The old harbour - Quiet Days</title>", "<h1>The old harbour</h1><h2>Quiet Days</h2>"),
        ("<title>eva: The old harbour</title>", "<h1>The journal of Eva</h1><h3 class=subject>The old harbour</h3>"),
        ("<title>The old harbour - Quiet Days</title>", "<div id=logo><h1>Quiet Days</h1></div>"),
        ("<title>The old harbour - Quiet Days</title>", "<p><a rel=home href=/>Quiet Days</a></p>"),
        ("<title>The old harbour</title>", "<h1><a href='https://a.example/blog/'>Notes</a></h1>"),
        ("<title>Untitled</title>", "<h1>The old harbour</h1>"),
        ("<title>Quiet Days</title>", BLOG + "<h2 class=entry-title>The old harbour</h2>"),
        (
            f'{JSON_LD}{{"@type": "Article", "headline": "The old harbour"}}</script>'
            "<title>x</title><meta property=og:title content='The old harbour'>",
            "<h1>News</h1>",
        ),
    ],
)
def test_the_title_of_a_blog_s_entry_is_not_the_name_of_the_blog(head: str, body: str) -> None:
    assert about(head, body, url="https://a.example/blog/17").title == "The old harbour"


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        # The section above a title in the heading; its text in Open Graph and the title element decide.
        (
            "<title>The harbour - Quiet News</title><meta property=og:title content='The harbour'>",
            "<h1>Local News | The harbour</h1>",
            "The harbour",
        ),
        ("<title>The harbour</title><meta property=og:title content='The harbour'>", "<h1>Local</h1>", "The harbour"),
        # What a reader sees, rather than what search engines and networks get.
        (
            "<title>Harbour: 7 facts</title><meta property=og:title content='Harbour: 7 facts'>",
            "<h1>What the harbour was like</h1>",
            "What the harbour was like",
        ),
        ("<title>Boats</title><meta property=og:title content='R&amp;amp;D at sea'>", "", "R&D at sea"),
        (
            "<title>Boats and ships | Quiet News</title>" + JSON_LD + '{"publisher": {"name": "Quiet News"}}</script>',
            "",
            "Boats and ships",
        ),
        ("<title>a.example: Boats</title>", "", "Boats"),
        ("<title>老港口_静日网</title><meta property=og:site_name content='静日网'>", "", "老港口"),
        (
            "<title>Le vieux port : une histoire - Jours calmes</title>",
            "<h1>Le vieux port : une histoire</h1>",
            "Le vieux port : une histoire",
        ),
        ("<title>Self-help and e-mail</title>", "", "Self-help and e-mail"),
        # A list of entries, and readers' headings.
        (
            "<title>Quiet Days</title>",
            BLOG + "<h2 class=entry-title>One</h2><h2 class=entry-title>Two</h2>",
            "Quiet Days",
        ),
        ("<title>Boats</title>", "<div class=comments><h1>What Bob thinks of it</h1></div>", "Boats"),
        ("", BLOG, "Quiet Days"),
    ],
)
def test_the_text_on_which_the_sources_agree_is_the_title(head: str, body: str, title: str) -> None:
    assert about(head, body, url="https://a.example/boats").title == title


@pytest.mark.parametrize(
    "page",
    [
        f"<title>{'a - ' * 50_000}</title>" + "<h1>a - b</h1>" * 5_000,
        "<div class='comments'>" + "<p class=author>Bob Ray says</p>" * 20_000,
        "<div>" * 400 + "<p class=author>x y</p>" * 2_000,
        f"<h2 class='{'title ' * 50_000}'>x</h2>" * 20,
        f"<h1>x</h1><p class=byline>{'By ' * 100_000}</p>",
        f"<p>{'1 May ' * 200_000}</p>",
        JSON_LD + "[" + ",".join(["[{}]"] * 100_000) + ', {"author": 1}]</script>',
        f'<meta name=author content="{"a@" * 100_000}">',
    ],
)
def test_a_page_made_to_cost_time_takes_a_second(page: str) -> None:
    tree = HTMLTree.parse(page)
    begin = time.process_time()
    read_page_metadata(tree, "https://a.example/boats")
    assert time.process_time() - begin < 1


def test_titles_authors_and_dates_of_real_pages_equal_the_annotation(shared_data: Path) -> None:
    pages = read_stated(shared_data / "extraction_segments")[::5]
    found = right(pages, peer=False)["sluice"]
    assert found["title"]["right"] >= 0.85 * found["title"]["pages"]
    assert found["author"]["right"] >= 0.65 * found["author"]["pages"]
    assert found["date"]["right"] >= 0.8 * found["date"]["pages"]


def test_the_title_is_read_from_the_head_and_not_from_svg() -> None:
    assert about("<title> A\n page </title>", "<svg><title>Arrow</title></svg>").title == "A page"
    assert about("", "<svg><title>Arrow</title></svg>").title == ""


def test_a_robots_tag_applies_anywhere_in_the_page() -> None:
    assert about("", "<p>x</p><meta name=robots content='noindex'>").robots == ("noindex",)
    assert about("<meta name=' Robots ' content='A'><meta name=robots-x content=B>").robots == ("A",)


def test_thousands_of_unrelated_time_elements_do_not_hide_the_date() -> None:
    comments = "<p><time datetime='2001-01-01'>then</time>" * 2_500
    robots, marked = "<meta name=robots content=noindex>", "<time class=entry-date datetime='2019-11-20'>"
    found = about("", comments + robots + marked + f"<a rel=license href='{CC}'>this</a>")
    assert (found.robots, found.published, found.licence) == (("noindex",), DAY, CC)


@pytest.mark.parametrize("value", ["entry-date\u00a0x", "entry-date\x0bx", "Entry-Date", "entry-dates", "x-entry-date"])
def test_classes_are_separated_by_html_white_space(value: str) -> None:
    time = "<time class='{}' datetime='2019-11-20'>the battle</time>"
    assert about("", time.format(value)).published is None
    assert about("", time.format(f"\n{value}\t\fentry-date\r")).published == DAY


@pytest.mark.parametrize(
    "before", ["<!-- c -->", "<!doctype html>", "\ufeff <?xml version='1.0'?>\n<!doctype html><!-- -->"]
)
def test_the_root_is_found_after_any_preceding_markup(before: str) -> None:
    assert (
        read_page_metadata(HTMLTree.parse(before + "<html lang=fr><svg><html lang=de></html></svg>")).language == "fr"
    )
