"""Content-Usage and Content-Signal: what a value says about training, and to which URLs robots.txt applies it."""

import pytest

from tasks.formats.web.robots import Robots
from tasks.formats.web.usage_preference import CONTENT_SIGNAL, CONTENT_USAGE, training_preference

Y, N = True, False


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("train-ai=n", N),
        ("train-ai=y", Y),
        ("search=y, train-ai=n", N),
        ("train-genai=y, train-ai=n", N),  # an unknown label decides nothing
        ("future=n, train-ai=y", Y),
        ("future=n", None),
        ("search=n", None),
        ("", None),
        ("train-ai=n;exceptions=research", N),
        ('train-ai=y;note="a, train-ai=n"', Y),
        ('note="a, train-ai=n", search=y', None),
        ("train-ai=n, train-ai=y", N),  # contradictory
        ("train-ai=y,\ttrain-ai=n", N),
        ("train-ai", None),
        ("train-ai=?0", N),
        ("train-ai=?1", None),
        ('train-ai="n"', N),
        ("train-ai=(n y)", None),
        ("train-ai=maybe", None),
        ('train-ai=1.5, list=(a;b=1 2), bytes=:aGk=:, date=@1, text=%"%c3%a9", flag;x', None),
        ("ai-train=no", N),  # the label of the other field refuses, and does not permit
        ("ai-train=yes", None),
        ("genai=n", N),  # labels of older drafts
        ("genai=y", None),
        # No dictionaries: recognizable refusals count, consents do not.
        ("Train-AI=N", N),
        ("train-ai = n", N),
        ("train-ai: n", N),
        ("train-ai=n,", N),
        ("search=y train-ai=n", N),
        ("train-ai=y,", None),
        ("Train-AI=y", None),
        ("train-ai=y search=y", None),
        ("train-ai=never mind", None),
        ("no-train-ai=n", None),
        ("=", None),
        ("(" * 100_000, None),
        ("a=" + "(" + "a " * 100_000, None),
    ],
)
def test_what_a_value_says_about_training(value, says):
    assert training_preference(CONTENT_USAGE, value) is says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("search=yes, ai-train=no", N),
        ("search=yes,ai-train=yes", Y),
        ("ai-train=NO", N),
        ("ai-train=YES", None),
        ("train-ai=n", N),
        ("train-ai=y", None),
        ("ai-input=no", None),
    ],
)
def test_content_signal_has_its_own_words(value, says):
    assert training_preference(CONTENT_SIGNAL, value) is says


def refused(body, *paths, agent="sluice"):
    robots = Robots(body.encode() if isinstance(body, str) else body, agent)
    return [path for path in paths if robots.ai_optout(f"http://h{path}")]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("/*.html", ["/a.html", "/x/b.html?q", "/.htmlx"], ["/", "/a.htm"]),
        ("*.html", ["/a.html"], ["/a.htm"]),
        ("/*.pdf$", ["/a.pdf"], ["/a.pdf?x", "/a.pdfs"]),
        ("/a/*/c", ["/a/b/c", "/a//c/d"], ["/a/c"]),
        ("/p%20q", ["/p%20q/1"], ["/p"]),
        ("/th%c3%a9", ["/th%C3%A9"], ["/th"]),
        ("/th\u00e9", ["/th%C3%A9"], ["/th"]),
        ("/%7Ejoe", ["/~joe", "/%7ejoe"], ["/joe"]),
        ("/a%2Fb", ["/a%2fb"], ["/a/b"]),
        ("/find?q=", ["/find?q=1"], ["/find"]),
        ("/Case", ["/Case"], ["/case"]),
        ("", ["/", "/a?b"], []),
        ("/", ["/", "/a?b"], []),
        ("*", ["/", "/a"], []),
    ],
)
@pytest.mark.parametrize("line", ["Content-Usage: {} train-ai=n", "content-signal : {}\tsearch=yes, ai-train=no # all"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_pattern_selects_urls_like_those_of_disallow_and_is_recorded(pattern, matching, others, line, end):
    text = line.format(pattern)
    body = f"User-agent: *{end}Allow: /{end}{text}{end}"
    assert refused(body, *matching, *others) == matching
    stated = [Robots(body.encode(), "sluice").terms(f"http://h{path}") for path in (*matching, *others)]
    assert [bool(terms) for terms in stated] == [True] * len(matching) + [False] * len(others)
    assert all(pattern.encode("utf-8").decode("latin-1") in value for terms in stated for _, value in terms)


@pytest.mark.parametrize(
    ("lines", "refuses"),
    [
        (["/ train-ai=n", "/ok/ train-ai=y"], ["/", "/x.html"]),
        (["/ok/ train-ai=y", "train-ai=n"], ["/", "/x.html"]),
        (["/ train-ai=y", "/*.html train-ai=n"], ["/x.html", "/ok/x.html"]),
        (["/ train-ai=n", "/*.html$ train-ai=y"], ["/", "/ok/"]),
        (["/ok/ train-ai=y", "/ok/ train-ai=n"], ["/ok/", "/ok/x.html"]),  # equal: the one that refuses
        (["/ok/ train-ai=n", "/*k/ train-ai=y"], ["/ok/", "/ok/x.html"]),
        (["/ train-ai=n", "/ok/ search=y"], ["/", "/x.html", "/ok/", "/ok/x.html"]),  # says nothing about training
        (["/ train-ai=n", "/ok/ train-ai=y,"], ["/", "/x.html", "/ok/", "/ok/x.html"]),  # malformed: no consent
        (["/ train-ai=n", "/ok/ unknown=y"], ["/", "/x.html", "/ok/", "/ok/x.html"]),
        (["/ok/"], []),
        (["/ train-ai=y"], []),
    ],
)
def test_the_longest_pattern_with_a_training_preference_applies(lines, refuses):
    body = "\n".join(["User-agent: *", *(f"Content-Usage: {line}" for line in lines)])
    assert refused(body, "/", "/x.html", "/ok/", "/ok/x.html") == refuses


def test_each_field_is_a_statement_and_one_refusal_suffices():
    body = "User-agent: *\nContent-Usage: /ok/ train-ai=y\nContent-Signal: ai-train=no"
    assert refused(body, "/", "/ok/") == ["/", "/ok/"]


@pytest.mark.parametrize(
    ("body", "refuses"),
    [
        ("User-agent: *\nContent-Usage: /*.html train-ai=n\nUser-agent: sluice\nContent-Usage: train-ai=y", []),
        (
            "User-agent: sluice\nContent-Usage: /*.html train-ai=n\nUser-agent: *\nContent-Usage: train-ai=y",
            ["/a.html"],
        ),
        ("User-agent: sluice\nDisallow: /x\nUser-agent: *\nContent-Usage: /*.html train-ai=n", ["/a.html"]),
        ("User-agent: other\nContent-Usage: /*.html train-ai=n", []),
        ("User-agent: other\nUser-agent: sluice\nContent-Usage: /*.html train-ai=n", ["/a.html"]),
        ("Content-Usage: /*.html train-ai=n\nUser-agent: *\nAllow: /", ["/a.html"]),
        ("User-agent: GPTBot\nContent-Usage: /*.html train-ai=n\nAllow: /", ["/a.html"]),
        (
            "User-agent: GPTBot\nContent-Usage: train-ai=y\nUser-agent: *\nContent-Usage: /*.html train-ai=n",
            ["/a.html"],
        ),
        (b"User-agent: *\nContent-Usage: /*.html tra\0in-ai=n", ["/a.html"]),
        (b"User-agent: *\nContent-Usage: /*.html train-ai=n\0, x", ["/a.html"]),
    ],
)
def test_a_preference_belongs_to_the_crawlers_of_its_group(body, refuses):
    assert refused(body, "/", "/a.html") == refuses


@pytest.mark.parametrize(
    ("body", "applies"),
    [
        ("License: g\nUser-agent: *\nAllow: /", ("g",)),
        ("License: g\nUser-agent: *\nLicense: a\nLicense: b\nLicense: a", ("a", "b")),
        ("License: g\nUser-agent: other\nLicense: o\nUser-agent: sluice\nLicense: s", ("s",)),
        ("License: g\nUser-agent: other\nLicense: o\nUser-agent: sluice\nAllow: /", ("g",)),
        ("User-agent: other\nLicense: o\nUser-agent: sluice\nAllow: /", ("o",)),  # it addresses another by name
        ("User-agent: *\nAllow: /", ()),
    ],
)
def test_the_licenses_of_the_crawlers_group_replace_those_above_all_groups(body, applies):
    assert Robots(body.encode(), "sluice").licenses == applies
