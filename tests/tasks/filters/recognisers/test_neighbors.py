"""False matches that were seen on pages, and beside each what must still be found."""

import pytest

from tasks.filters.recognisers.scan import find

NEIGHBORS = [
    ('rural[,"2005::2010"]', []),
    ('x["2001::2003-06"]', []),
    ("class Order2005::2010 {", []),
    ("from 2001:4860:4860::8888 port 22", ["2001:4860:4860::8888"]),
    ("from 2001:658:22a:cafe::1 port 22", ["2001:658:22a:cafe::1"]),
    ("host 3ffe::1.net", []),
    ("Norton Security 23.0.24.127", []),
    ("the latest is 24.0.9.46, they say", []),
    ("Reader (beta) 11.7.23.122 is out", []),
    ("Login from 23.0.24.127 refused", ["23.0.24.127"]),
    ("by 93.184.215.14, who wrote", ["93.184.215.14"]),
    ("sizes 4300 4400 4500 4600 mm", []),
    ("sizes 3000, 4300 4400 4500 4600", []),
    ("4000-4250-4500-4750", []),
    ("4666 2911 2479 3573 7822", []),
    ("4111 1111 1111 1111 5555 5555 5555 4444", ["4111 1111 1111 1111", "5555 5555 5555 4444"]),
    ("card 4242 4242 4242 4242", ["4242 4242 4242 4242"]),
    ("card 4000 0566 5566 5556", ["4000 0566 5566 5556"]),
    ("Tel. 6468 5788, Mo - Fr 9.00 - 13.00", ["6468 5788"]),
    ("Tel. 030 2312512, 9.00-12.30 und 14.00-18.00", ["030 2312512"]),
    ("Telefon: 8.00 – 16.00 Uhr", []),
    ("Tel. 09.00.13.00.12", ["09.00.13.00.12"]),
    ("1 University of Exeter Medical School, Exeter, EX4 4QL", []),
    ("2 School of Physics and Astronomy, Leeds, LS1 4AP", []),
    ("3 Imperial College London, London SW7 2AZ", []),
    ("1 University Road, Exeter EX4 4QL", ["1 University Road, Exeter EX4 4QL"]),
    ("12 Old School Lane, Leeds LS1 4AP", ["12 Old School Lane, Leeds LS1 4AP"]),
]


@pytest.mark.parametrize(("text", "expected"), NEIGHBORS)
def test_what_resembles_personal_data_is_left_and_its_neighbor_is_found(text: str, expected: list[str]) -> None:
    assert [text[span.start : span.end] for span in find(text)] == expected
