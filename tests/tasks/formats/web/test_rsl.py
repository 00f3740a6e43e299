"""RSL 1.0 documents: what a license says about the training of models on a URL."""

import pytest

from tasks.formats.web.rsl import RslDocument, strictest

NAMESPACE = 'xmlns="https://rslstandard.org/rsl"'


def document(*contents: tuple[str, str], attributes: str = "") -> RslDocument:
    parts = (f'<content url="{url}" {attributes}>{licenses}</content>' for url, licenses in contents)
    return RslDocument(f"<rsl {NAMESPACE}>{''.join(parts)}</rsl>".encode())


def license_of(*elements: str) -> str:
    return f"<license>{''.join(elements)}</license>"


def permits(words: str, kind: str = "usage") -> str:
    return f'<permits type="{kind}">{words}</permits>'


def prohibits(words: str, kind: str = "usage") -> str:
    return f'<prohibits type="{kind}">{words}</prohibits>'


@pytest.mark.parametrize(
    ("licenses", "says"),
    [
        (license_of(prohibits("ai-train")), False),
        (license_of(prohibits("search\n  AI-Train ")), False),
        (license_of(prohibits("ai-all")), False),
        (license_of(prohibits("all")), False),
        (license_of(prohibits("ai-input ai-index search")), True),
        (license_of(permits("ai-train")), True),
        (license_of(permits("all")), True),
        (license_of(permits("search")), False),  # the list is complete
        (license_of(permits("")), False),
        (license_of(permits("search,ai-all")), True),  # commas as in the draft 0.9
        (license_of(permits("all"), prohibits("ai-train")), False),
        (license_of(permits("ai-train"), prohibits("ai-all")), False),  # both: not licensed
        (license_of(permits("x:ai-train")), False),  # a token of an extension
        (license_of("<permits>search</permits>"), False),
        (license_of(), True),
        ("", None),
        # Several licenses: any may be chosen, but a prohibition counts.
        (license_of(permits("search")) + license_of(permits("ai-train")), True),
        (license_of(permits("ai-train")) + license_of(prohibits("ai-train")), False),
        # What a crawler cannot fulfil.
        (license_of(permits("ai-train"), '<payment type="free"/>'), True),
        (license_of(permits("ai-train"), "<payment/>"), True),
        (license_of('<payment type="attribution"><standard>https://c/by</standard></payment>'), True),
        (
            license_of(permits("ai-train"), '<payment type="training"><amount currency="USD">1</amount></payment>'),
            False,
        ),
        (license_of('<payment type="crawl"/>'), False),
        (license_of("<payment><custom>https://h/ask</custom></payment>"), False),
        (license_of(permits("ai-train"), '<reporting type="audit" profile="https://p"/>'), False),
        (license_of(permits("non-commercial", "user")), False),
        (license_of(prohibits("DE", "geo")), False),
        (license_of(permits("all"), '<legal type="contact">x</legal><unknown/>'), True),
        (license_of(prohibits("<!-- x -->ai-<![CDATA[train]]>")), False),
    ],
)
def test_what_the_licenses_of_a_url_say(licenses, says):
    assert document(("/", licenses)).permits_training("https://h.example/a") is says


def test_a_license_server_is_a_condition_and_a_content_without_license_says_nothing():
    free = license_of(permits("all"))
    assert document(("/", free), attributes='server="https://api.example"').permits_training("http://h/") is False
    assert document(("/", license_of(prohibits("all"))), ("/a/", "")).permits_training("http://h/a/") is False


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("/", ["http://h/", "https://o/a?b"], []),
        ("", ["http://h/", "http://h/a"], []),
        ("*", ["http://h/a"], []),
        ("/news/*.html$", ["http://h/news/a.html"], ["http://h/news/a.html?x", "http://h/a.html"]),
        ("/th%C3%A9/%7Ex", ["http://h/th%C3%A9/~x"], ["http://h/the"]),
        ("/th\u00e9", ["http://h/th%C3%A9"], []),
        ("news", ["http://h/news/a"], ["http://h/"]),
        ("https://h/a/", ["https://h/a/b", "http://h/a/b"], ["https://o/a/b", "https://h/"]),
        ("https://H", ["https://h/", "https://h/a"], ["https://h.o/", "https://o/"]),
        ("https://*.h/*", ["https://www.h/a"], ["https://h/a", "https://www.h.o/"]),
        ("//h:81/a", ["http://h:81/a"], ["http://h/a"]),
    ],
)
def test_a_content_covers_the_urls_that_match_its_pattern(pattern, matching, others):
    found = document((pattern, license_of(prohibits("ai-train"))))
    assert [url for url in (*matching, *others) if found.permits_training(url) is False] == matching
    assert [url for url in (*matching, *others) if found.terms(url)] == matching


@pytest.mark.parametrize(
    ("contents", "refused"),
    [
        ([("/", permits("all")), ("/articles/", prohibits("ai-train"))], ["/articles/x"]),  # RSL 1.0, 3.1.2
        ([("/articles/", permits("all")), ("/", prohibits("ai-train"))], ["/"]),
        ([("/", permits("all")), ("/", prohibits("ai-train"))], ["/", "/articles/x"]),
        ([("/articles/", permits("all")), ("/*ticles/", prohibits("all"))], []),
        ([("https://h/articles/", permits("all")), ("/", prohibits("all"))], ["/"]),
    ],
)
def test_the_longest_matching_url_decides_and_of_equal_ones_the_strictest(contents, refused):
    found = document(*((url, license_of(terms)) for url, terms in contents))
    assert [path for path in ("/", "/articles/x") if found.permits_training(f"https://h{path}") is False] == refused


def test_terms_are_those_of_the_deciding_content():
    terms = permits("search ai-input") + prohibits("ai-train") + '<payment type="crawl"/>'
    found = document(("/", license_of(terms)), ("/free/", license_of(permits("all"))))
    assert found.terms("http://h/") == [
        ("permits", "ai-input search"),
        ("prohibits", "ai-train"),
        ("requires", "payment:crawl"),
    ]
    assert found.terms("http://h/free/") == [("permits", "all")]


BOMB = "<!DOCTYPE rsl [" + "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(12)) + ']><rsl a="&e12;"/>'


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\0", b"<rsl>", b"not xml", b"<html><body>404</body></html>", b"[]"),
        *(BOMB.encode(), b"<rsl>" * 100_000, b'<?xml version="1.0" encoding="x-none"?><rsl/>'),
    ],
)
def test_a_file_that_is_no_rsl_is_an_error(body):
    with pytest.raises(ValueError, match=r"^it is no (XML|RSL): "):
        RslDocument(body)


def test_entities_are_neither_expanded_nor_loaded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("ai-train")
    declared = f'<!DOCTYPE rsl [<!ENTITY a "ai-train"><!ENTITY f SYSTEM "file://{secret}">]>'
    terms = license_of(permits("&a; &f;"))
    found = RslDocument(f'{declared}<rsl><content url="/">{terms}</content></rsl>'.encode())
    assert found.permits_training("http://h/") is False
    assert "ai-train" not in str(found.terms("http://h/"))


def test_prefixes_and_a_missing_namespace_make_no_difference():
    terms = '<r:content url="/"><r:license><r:prohibits type="usage">all</r:prohibits></r:license></r:content>'
    prefixed = f'<r:rsl xmlns:r="https://rslstandard.org/rsl">{terms}</r:rsl>'
    for text in (prefixed, f"<rsl>{terms.replace('r:', '')}</rsl>"):
        assert RslDocument(text.encode("utf-16")).permits_training("http://h/") is False
    foreign = '<rsl xmlns:o="http://o"><o:content url="/"><o:license/></o:content></rsl>'
    assert RslDocument(foreign.encode()).permits_training("http://h/") is None


def test_the_strictest_of_several_answers_applies():
    assert [strictest(answers) for answers in ([], [None], [True, None], [True, False, None])] == [
        None,
        None,
        True,
        False,
    ]
