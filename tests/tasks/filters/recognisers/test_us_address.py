"""Addresses of the United States and Canada in the formats of people, licenses and pages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.recognisers.folding import find_candidates
from tasks.filters.recognisers.postal_address import _AMERICAN_POSTCODE
from tasks.filters.recognisers.scan import find


def found(text: str, countries: tuple[str, ...] = ("US", "CA")) -> list[str]:
    return [text[span.start : span.end] for span in find(text, ("address",), countries)]


ADDRESSES = [
    "450 West 31st Street, New York, NY 10001",
    "450 West 31st Street, 15th Floor, New York, NY 10001",
    "15th Floor, 450 West 31st Street, New York, NY 10001",
    "51 Franklin Street, Fifth Floor, Boston, MA 02110-1301",
    "51 Franklin Street - Fifth Floor, Boston, MA  02110-1301",
    "59 Sample Place, Suite 330, Boston, MA 02111 - 1307",
    "1 Sample Square #143, P.O.Box 9171, Cambridge, Massachusetts 02139",
    "Suite 500 1735 Example Avenue, N.W. Washington, D.C. 20006",
    "#102, 686 W. Maple Ave, Sunnyvale, CA 94086",
    "542 West 112th Street, 5N, New York, New York 10025",
    "998 East 900 South, Suite 26, Provo, Utah 84606-5607",
    "5200 N.E. Invented Parkway, Hillsboro, OR 97124-6497",
    "68-30 Sample Street, Forest Hills, NY 11375",
    "820 4th St. N., Fargo, ND 58122",
    "7 Kiwi Loop, Howell, NJ 07731",
    "2037 Walnut #6, Boulder, Colorado 80302",
    "8925 Sample Pike, Vienna, VA 22184 - 0002",
    "1600 AMPLE WAY, MOUNTAIN VIEW, CALIFORNIA 94043",
    "320 Main,Denver,CO,84100",
    "16209 Sample Blvd 120 Van Nuys, CA 91406",
    "One Sample Way, Redmond, WA 98052",
    "Post Office Box 691886, San Antonio, Texas 78269-1886",
    "PO Box 105603 # 77998 Atlanta, GA 30348 - 5603",
    "POB 1822, Socorro NM, 87801",
    "103 Morris Street, Suite A, Sebastopol, CA 95472",
    "1725 EXAMPLE STREET, NW. · WASHINGTON, DC 20036",
    "85 Frank St., Ottawa, Ontario, Canada K2P 0X3",
    "410 Specimen Crescent, Sampleton, ON K1A 0B1",
    "1234 rue du Spécimen, Montréal, Québec H2X 1Y4",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "frame", ["Write to {} today.", "{}", "Jo Doe, {}, USA", "the Example Foundation, Inc., {}, or call"]
)
def test_an_address_is_found_from_its_house_or_suite_to_its_postcode(address: str, frame: str) -> None:
    assert found(frame.format(address)) == [address]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("end", ["\n", "\n  ", "\n\t", ",\n       ", "\n\n    "])
def test_the_lines_of_an_address_can_be_indented(address: str, end: str) -> None:
    lines = address.replace(", ", end)
    assert found(f"Jo Doe{end}{lines}{end}USA") == [lines]


@pytest.mark.parametrize("mark", ["#", " *", "//", ">", ".", ";;", "|", "%"])
def test_the_lines_of_an_address_can_be_comments_or_quotations(mark: str) -> None:
    text = f"{mark} the Foundation, 51\n{mark} Sample Street, Boston, MA\n{mark} 02110-1301 USA\n"
    assert found(text) == [text[text.index("51") : text.index(" USA")]]


@pytest.mark.parametrize(
    "text",
    [
        "Pittsburgh PA 15213-3890",  # a town, not a house
        "Subject IL 45094: status",
        "the regression of 3.11a1 came with PR 24421",
        "In 1998 some 12 towns of the state of New York 10001 people lived in",
        "order 12 units of article OR 12345",
        "from 5 to 7 we counted, in Texas 78701 birds",
        "12345 12346 12347, 12348",
        "see chapter 5, The Art of War, OK 12345",
        "version K1A 0B1 of part ON",
    ],
)
def test_a_state_and_a_number_alone_are_not_an_address(text: str) -> None:
    assert found(text) == []


def test_a_year_before_a_name_is_not_a_house_number() -> None:
    text = "Copyright 1998 Example Press, 75 Sample St., Boston, MA 02116"
    assert found(text) == [text[text.index("75") :]]


def test_addresses_do_not_overlap() -> None:
    one, two = "5 Elm Street, Springfield, IL 62704", "7 Oak Lane, Exeter, NH 03833"
    assert found(f"{one}, {two}") == [one, two]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("He lived at 12 Elm Street with his wife", "12 Elm Street"),
        ("Jo Doe, 34, of 12 Elm Street, Springfield, was arrested", "12 Elm Street"),
        ("Jo Doe, formerly of 12 Elm Street, died", "12 Elm Street"),
        ("at her home at 1234 Maple Avenue in Portland", "1234 Maple Avenue"),
        ("in a house on 45 Oak Lane", "45 Oak Lane"),
        ("residents of 55 Pine Road", "55 Pine Road"),
        ("moved to 3 West 5th Street last year", "3 West 5th Street"),
        ("at 171 Second Street, San Francisco, California, he", "171 Second Street, San Francisco, California"),
        ("in 12 Elm Street, Apt 4B,", "12 Elm Street, Apt 4B"),
    ],
)
def test_a_home_in_running_text_is_found_without_a_postcode(text: str, address: str) -> None:
    assert found(text) == [address]


def test_only_the_configured_country_is_searched() -> None:
    american, canadian = "5 Elm Street, Springfield, IL 62704", "5 Elm Street, Sampleton, ON K1A 0B1"
    text = f"{american}; {canadian}"
    assert found(text, ("US",))[0] == american
    assert canadian in found(text, ("CA",))
    assert found(text, ("DE",)) == []


PIECES = st.sampled_from(
    [*"1 a,.\n*#-", "12345", "62704", "IL ", "NY", "ON K1A", "0B1", "K1A 0B1", "Elm ", "St", " \n", "/ ", ", "]
)


@given(st.lists(PIECES, max_size=24).map("".join))
def test_every_postcode_after_a_state_is_examined(text: str) -> None:
    places = set(find_candidates(text).digits)
    # A part of a longer number is not a postcode.
    codes = {
        one.start()
        for one in _AMERICAN_POSTCODE.finditer(text)
        if not re.match("[0-9]", text[one.start() - 1 : one.start()])
    }
    assert codes <= places
