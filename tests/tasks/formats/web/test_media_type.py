"""The media type of a body is the one that browsers see in its headers."""

import time

import pytest

from tasks.formats.web.media_type import media_type


@pytest.mark.parametrize(
    ("values", "essence", "charset"),
    [
        ([], "", ""),
        ([""], "", ""),
        (["text/html; charset=x"], "text/html", "x"),
        (["Text/HTML;Charset='x'"], "text/html", "x"),
        (["text/plain", "text/html"], "text/html", ""),
        (["text/plain, text/html"], "text/html", ""),
        (["text/html, text/html"], "text/html", ""),
        (["text/html; charset=x, text/html"], "text/html", "x"),
        (["text/html; charset=x", "text/html; charset=y"], "text/html", "y"),
        (["text/html; charset=x", "text/plain"], "text/plain", ""),
        (["text/html", ""], "text/html", ""),
        (["text/html", "nonsense, */*"], "text/html", ""),
        (['text/html; a=","; b="x, text/plain'], "text/html", ""),
        (['text/html; charset="x"; a="b, c/d"'], "text/html", "x"),
        (["nonsense"], "nonsense", ""),
        (["nonsense; charset=x"], "nonsense", "x"),
    ],
)
def test_the_last_valid_of_several_content_types_applies(values, essence, charset):
    assert media_type(values) == (essence, charset)


def test_a_hostile_content_type_is_parsed_in_linear_time():
    begin = time.process_time()
    for piece in ('"', ",", '",', 'a"', "a/b,", "a/b;charset", "a/b;charset= "):
        media_type([piece * (100_000 // len(piece))])
    assert time.process_time() - begin < 5  # quadratic time would take minutes
