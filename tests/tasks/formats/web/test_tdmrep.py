"""Evaluation of tdmrep.json for a URL, by the report of the W3C community group."""

import time

import pytest

from tasks.formats.web.tdmrep import Reservations

RULES = b"""[
 {"location": "/a/open/", "tdm-reservation": 0},
 {"location": "/a/", "tdm-reservation": 1, "tdm-policy": "https://h/p.json"},
 {"location": "/img/*.jpg$", "tdm-reservation": "1"},
 {"location": "/exact$", "tdm-reservation": 1},
 {"location": "/price-%24", "tdm-reservation": 1},
 {"location": "/caf%C3%A9/%7Ex", "tdm-reservation": 1},
 {"location": "/caf\xc3\xa9s/", "tdm-reservation": 1},
 {"location": 5, "tdm-reservation": 1}, "x", {"tdm-reservation": 1},
 {"location": "/*/b*c/*", "tdm-reservation": 1},
 {"location": "/error/", "tdm-reservation": 2},
 {"location": "/error/", "tdm-reservation": 1},
 {"location": "/unset"},
 {"location": "/Case", "tdm-reservation": 1}
]"""


@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        ("/a/x", True),
        ("/a/open/x", False),
        ("/a", False),
        ("/img/x/y.jpg", True),
        ("/img/x.jpg?s", False),
        ("/exact", True),
        ("/exactly", False),
        ("/price-$", True),
        ("/price-1", False),
        ("/caf%C3%A9/~x", True),
        ("/caf%C3%A9s/x", True),
        ("/z/bxxc/", True),
        ("/z/bc/y?q", True),
        ("/z/b/y", False),
        ("/error/x", False),
        ("/unset", False),
        ("/Case", True),
        ("/case", False),
        ("/", False),
    ],
)
def test_the_first_matching_rule_applies(path, reserved):
    assert Reservations(RULES).reserves(f"https://h{path}") is reserved


@pytest.mark.parametrize("location", ["/", "*", "/*", ""])
def test_a_whole_site_is_reserved(location):
    said = Reservations(b'[{"location": "%s", "tdm-reservation": 1}]' % location.encode())
    assert said.reserves("https://h/")
    assert said.reserves("https://h/a/b?c")


@pytest.mark.parametrize("value", ["true", "null", "2", "-1", '"yes"', "[1]", "{}", "1e400", "1" * 4000])
def test_an_undefined_value_is_ignored(value):
    assert not Reservations(b'[{"location": "/", "tdm-reservation": %s}]' % value.encode()).reserves("https://h/")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_in_any_encoding_of_json_is_read(encoding):
    assert Reservations('[{"location": "/é", "tdm-reservation": 1}]'.encode(encoding)).reserves("https://h/%C3%A9")


@pytest.mark.parametrize(
    "file",
    [
        *(b"", b"<html>", b"{}", b'{"location": "/", "tdm-reservation": 1}', b"null", b"[", b"\xff"),
        *(b'[{"location": "/", "tdm-reservation": 1}', b'[{"location": "/", "tdm-reservation": %s}]' % (b"1" * 5000)),
    ],
)
def test_a_file_that_is_not_a_json_array_is_refused_with_the_reason(file):
    with pytest.raises(ValueError, match="it is no"):
        Reservations(file)


@pytest.mark.parametrize("end", [b"", b"]" * 100_000])
def test_a_file_of_brackets_is_refused(end):
    with pytest.raises(ValueError, match="nested too deeply"):
        Reservations(b"[" * 100_000 + end)


def test_lone_surrogates_are_handled():
    assert not Reservations(rb'[{"location": "/\ud800", "tdm-reservation": 1}]').reserves("https://h/a")


def test_a_pattern_of_stars_takes_little_time():
    said = Reservations(b'[{"location": "/' + b"*a" * 10_000 + b'b$", "tdm-reservation": 1}]')
    begin = time.process_time()
    assert not said.reserves("https://h/" + "a" * 4000)
    assert time.process_time() - begin < 1
