"""An address with a bracketed "(at)" is found; a bracket in prose is not an address."""

import pytest

from tasks.filters.recognisers.scan import find


def found(text: str) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in find(text)]


@pytest.mark.parametrize(
    "address",
    [
        "jo (at) example (dot) org",
        "jo [at] example [dot] org",
        "jo(at)example(dot)org",
        "jo[AT]example[DOT]org",
        "jo ( at ) mail.example ( dot ) org",
        "jo [at] example.org",
        "jo.doe(at)example.co.uk",
        "jo (dot) doe (at) mail (dot) example (dot) org",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "Write to {}.", "{}, or call", "<{}>"])
def test_an_address_obfuscated_with_brackets_is_found_whole(address: str, frame: str) -> None:
    assert found(frame.format(address)) == [("email", address)]


@pytest.mark.parametrize(
    "text",
    [
        "Meet me at example dot org, at noon.",
        "Time for anastomosis (AT) was recorded. In group E it rose.",
        "We stop (at) noon. Then we go on.",
        "see it [at] 3.14 or (at) the.end",
        "(at) example.org",
        "x[at].y.com and catch(at){var N=t.dot}",
        "e [dot] g (dot) org",
    ],
)
def test_brackets_in_prose_and_code_make_no_address(text: str) -> None:
    assert found(text) == []


def test_two_obfuscated_addresses_are_both_found() -> None:
    text = "jo (at) example (dot) org or al [at] example [dot] com"
    assert found(text) == [("email", "jo (at) example (dot) org"), ("email", "al [at] example [dot] com")]


def test_an_ambiguous_obfuscated_address_is_found_once() -> None:
    assert found("a (at) b (dot) c (at) d (dot) de") == [("email", "b (dot) c (at) d (dot) de")]


@pytest.mark.parametrize(
    "address",
    [
        "info at archive dot org",
        "jo dot doe at example dot ac dot uk",
        "jo-doe AT mail-host DOT org",
        "jo.doe at gmail dot com",
    ],
)
@pytest.mark.parametrize("frame", ["Write to {} please", "Jo Doe <{}>", "{}", "jo\n{}\njo"])
def test_an_address_spelled_with_at_and_dot_is_found(frame: str, address: str) -> None:
    text = frame.format(address)
    assert [text[one.start : one.end] for one in find(text)] == [address]


@pytest.mark.parametrize(
    "text",
    [
        "Look at example dot com",
        "We sell it online at example dot com today",
        "sat at home dot matrix",
        "info at archive.org",
        "meet at noon dot",
        "at a dot org",
    ],
)
def test_words_before_at_and_a_site_name_are_not_a_mailbox(text: str) -> None:
    assert find(text) == []
