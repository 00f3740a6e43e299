"""Each kind of personal data: matches, and text that only resembles them."""

import base64
import random
import uuid

import pytest

from tasks.filters.recognisers.scan import KINDS, find
from tasks.filters.recognisers.span import Evidence, PiiSpan, resolve


def found(
    text: str,
    *,
    kinds: tuple[str, ...] = KINDS,
    countries: tuple[str, ...] = ("US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR"),
) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in find(text, kinds, countries)]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Write to (jo.doe+web@example.co.uk).", "jo.doe+web@example.co.uk"),
        ("联系邮箱foo@example.com谢谢", "foo@example.com"),
        ("jo@example.com.Next sentence", "jo@example.com"),
        ("Mail:max@müller.de!", "max@müller.de"),
        ("<a href='mailto:jo@xn--bcher-kva.example'>", "jo@xn--bcher-kva.example"),
        ("...jo@example.com", "jo@example.com"),
    ],
)
def test_an_email_address_is_found_without_surrounding_characters(text: str, address: str) -> None:
    assert found(text) == [("email", address)]


@pytest.mark.parametrize(
    "text",
    [
        "@app.route('/')",
        "thanks @jane.doe and @max",
        "— @max@social.example",
        "npm i vue@3.2.1 lodash@latest @scope/pkg@1.0.0",
        "icon@2x.png",
        "git clone git@example.org:team/repo.git",
        "https://user@example.org/ ftp://me:secret@example.org",
        "h = x@w.T; y = a@b.to(device)",
        "a@b",
        "git@host.org:a/b hg@host.org:80/x root@host.org:/etc",
        "https://a.example/x ftp://u:p@host.org/ and svn+ssh://jane@host.org",
        "q = x@w.data[0] + a@b.dot(c)",
    ],
)
def test_an_at_sign_alone_makes_no_email_address(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Web: https://example.org E-Mail:jane.doe@example.org, Tel.", "jane.doe@example.org"),
        ("See https://a.example/x mailto:jane@example.org now", "jane@example.org"),
        ("http://a.example,mail:jane@example.org", "jane@example.org"),
        ('href="http://a.example":jane@example.org', "jane@example.org"),
        ("https://a.example/?q=a:jane@example.org", "jane@example.org"),
        ("mailto://jane@example.org", "jane@example.org"),
        ("//jane@example.org", "jane@example.org"),
        ("jane@example.org(work)", "jane@example.org"),
        ("jane@example.org[1]", "jane@example.org"),
        (" Mail an jane@example.org:Mo/Di", "jane@example.org"),
        ("jane@example.org:80/x", "jane@example.org"),
        ("jane@example.org:~/x/y", "jane@example.org"),
        (" " + "_" * 60 + "jane@example.org", "jane@example.org"),
        (" " + "_" * 61 + "jane@example.org", "jane@example.org"),
        ("." * 99 + "jane@example.org", "jane@example.org"),
        ("a" * 65 + "@example.com", "a" * 64 + "@example.com"),
        ("anna.k.@example.com", "anna.k.@example.com"),
        ("x.@example.com", "x.@example.com"),
        ("'jane'@example.org", "jane'@example.org"),
        ('"jane doe"@example.org', '"jane doe"@example.org'),
        ("jane@example.orgTel", "jane@example.org"),
        ("JANE@EXAMPLE.ORGTel. 1", "JANE@EXAMPLE.ORG"),
        ("jane@example.comphone 1", "jane@example.com"),
        ("Jane@Example.Com谢谢。再见", "Jane@Example.Com"),
        ("мария@почта.рф", "мария@почта.рф"),
        ("jane@例え.jp", "jane@例え.jp"),
        ("jane%40example.org", "jane%40example.org"),
        ("jane&#64;example.org", "jane&#64;example.org"),
        ("jane\\u0040example.org", "jane\\u0040example.org"),
        ("jane@my_host.example.org_", "jane@my_host.example.org"),
        ("jane@example.org-bob@example.org", "jane@example.org-bob@example.org"),
        ("jane@nas.home", "jane@nas.home"),
        ("jane\u200b@example\u00ad.org", "jane\u200b@example\u00ad.org"),
        ("jane＠example．org", "jane＠example．org"),
    ],
)
def test_an_email_address_is_found_next_to_any_character(text: str, address: str) -> None:
    assert found(text) == [("email", address)]


@pytest.mark.parametrize(
    "number",
    [
        "(415) 555-0123",
        "415-555-0123",
        "+1 415 555 0123",
        "020 7946 0958",
        "+44 (0)20 7946 0958",
        "030/23125123",
        "+49 30 23125 123",
        "01 99 00 12 34",
        "02.61.91.12.34",
        "(11) 98765-4321",
        "06-12345678",
        "022-23456789",
        "0049 30 23125123",
        "+61 491 570 156",
    ],
)
def test_a_number_in_an_unambiguous_telephone_format_needs_no_label(number: str) -> None:
    assert found(f"The shop, {number}, is open.") == [("phone", number)]


def test_a_number_in_no_plan_needs_a_plus_sign_because_leading_zeros_may_be_those_of_a_code() -> None:
    assert found("The shop, +49 1111 222 333, is open.") == [("phone", "+49 1111 222 333")]
    assert found("The part 0049 1111 222 333 is new.") == []


@pytest.mark.parametrize(
    ("label", "number"),
    [("Call", "4155550123"), ("Teléfono:", "612 345 678"), ("मोबाइल:", "98765 43210"), ("Tel.", "0221 4710 123")],
)
def test_an_ambiguous_number_is_a_telephone_number_next_to_a_label(label: str, number: str) -> None:
    assert found(f"{label} {number}") == [("phone", number)]
    assert found(f"It has {number} in it") == []


@pytest.mark.parametrize("before", ["T", "Tel", "Phone=", "=", "/", "Fax#", "Mobile_", "wa.me/", "Tel.:", "\u202a"])
def test_a_plus_sign_starts_a_valid_number_after_any_character(before: str) -> None:
    assert found(f"{before}+493023125123") == [("phone", "+493023125123")]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("415-555-0123,415-555-0124", ["415-555-0123", "415-555-0124"]),
        ("415-555-0123/415-555-0124", ["415-555-0123", "415-555-0124"]),
        ("jo,415-555-0123,5", ["415-555-0123"]),
        ("(415) 555-0123/0124", ["(415) 555-0123"]),
        ("-415-555-0123", ["415-555-0123"]),
        ("Jo--415-555-0123[1]", ["415-555-0123"]),
        ("_415-555-0123_", ["415-555-0123"]),
        ("415 - 555 - 0123", ["415 - 555 - 0123"]),
        ("(415).555.0123", ["(415).555.0123"]),
        ("( 415 ) 555-0123", ["( 415 ) 555-0123"]),
        ("415/555-0123", ["415/555-0123"]),
        ("(817) 555 - 0123", ["(817) 555 - 0123"]),
        ("Jo (817) 555 - 0123 (home)", ["(817) 555 - 0123"]),
        ("1 (817) 555 - 0123", ["1 (817) 555 - 0123"]),
        ("1(415)555-0123", ["1(415)555-0123"]),
    ],
)
def test_a_number_is_found_in_lists_and_records(text: str, numbers: list[str]) -> None:
    assert found(text) == [("phone", number) for number in numbers]


def test_an_amount_of_money_is_not_a_telephone_number() -> None:
    assert found("x=a+12 345 67 89 and 1+493023125123 and n+1000000000") == []


def test_an_extension_does_not_hide_the_number() -> None:
    assert found("Phone 415-555-0123x456 or +1-415-555-0199 x7") == [
        ("phone", "415-555-0123"),
        ("phone", "+1-415-555-0199"),
    ]
    assert found("415-555-0123y456") == []


def test_the_nearest_label_decides() -> None:
    assert found("Call us about order 4155550123") == []
    assert found("For your order call 4155550123") == [("phone", "4155550123")]


def test_a_label_on_another_line_counts_only_as_a_heading() -> None:
    assert found("Call now\n4155550123") == [("phone", "4155550123")]
    assert found("Call 911\n4155550123 units sold") == []
    assert found("Call now\nSold: 4155550123") == []


def test_only_the_configured_countries_are_searched() -> None:
    text = "020 7946 0958 or 415-555-0123, +49 30 23125 123"
    assert found(text, countries=("GB",)) == [("phone", "020 7946 0958"), ("phone", "+49 30 23125 123")]
    assert found("Musterstraße 12, 12345 Musterstadt", countries=("US",)) == []


@pytest.mark.parametrize(
    "text",
    [
        "SKU 415-555-0123",
        "https://example.com/item/415-555-0123",
        "1.415.555.0123.7 and 2415-555-0123",
        "Call 2020-05-19 17:26:13",
        "Tel: 1976-1979",
        "Call for $4155550123",
        "12 415 555 0123 98",
        "(211) 555-0123",
        "+999 30 23125123",
    ],
)
def test_other_numbers_are_not_telephone_numbers(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "M31 lies at 00 42 44.33 +41 16 07.5",
        "Dec. +82 51 26.68, then +39 08 23.95 and +63 02 33.983",
        "call it +27 59 10.0; dial -12 34 56.7",
        "proper motion of +54 02 41.1 -421.96",
        "NGC 6896  12 34.6  +43 27  12.7",
        "longitude +49.912511",
        "36505;AL,Mobile;-88.001035;30.930065",
        "Call number: 616.24497 C481 1984",
        "Call no. 120.868 3856",
        "Call Number 306 977 0179",
        "call sign K7ABC, 25.978.698 MHz",
        "calling CQ on 14.074.000 and 7074000 Hz",
        "contact on 570.525 617.146",
        "Call|NA|R| 2012/01/01-2012/12/31",
        "after calling it (CVE-2022-4450)",
        "call f(8898833)",
        'ph> obsfile "1 2 3 6 8 7 0 4 5"',
    ],
)
def test_catalog_shelf_and_station_numbers_are_not_telephone_numbers(text: str) -> None:
    assert found(text) == []


def test_a_public_address_is_personal_and_a_private_or_documented_one_is_not() -> None:
    assert found("client 198.41.0.4 and 2606:4700:4700::1111") == [("ip", "198.41.0.4"), ("ip", "2606:4700:4700::1111")]
    assert found("192.168.1.7 10.0.0.1 127.0.0.1 169.254.1.1 192.0.2.9 198.51.100.2 224.0.0.251 ::1 fe80::1") == []
    assert found("2001:db8::8a2e fd00::1 and the network 2606:4700::/32, 198.41.0.0/24") == []


@pytest.mark.parametrize(
    "text",
    [
        "<{}>",
        "<td>{}</td>",
        "\n>{}",
        "root@{}",
        "IP{}",
        "IP-{}",
        "ip_{}",
        "{}/32",
        "{}/24",
        "{}:8080",
        "{}[1]",
        "{}(de)",
    ],
)
def test_an_ip_address_is_found_next_to_any_character(text: str) -> None:
    assert found(text.format("198.41.0.4")) == [("ip", "198.41.0.4")]


def test_an_address_before_a_short_number_is_found() -> None:
    assert found("IP 8.8.8.8 (2)") == found("IP 8.8.8.8 2 times") == [("ip", "8.8.8.8")]
    assert found("2606:4700:4700::1111: refused") == [("ip", "2606:4700:4700::1111")]


def test_both_ends_of_a_range_of_addresses_are_found() -> None:
    assert found("198.41.0.4-198.41.0.9") == [("ip", "198.41.0.4"), ("ip", "198.41.0.9")]
    assert found("2606:4700:4700::1111/128") == [("ip", "2606:4700:4700::1111")]


@pytest.mark.parametrize(
    "text",
    [
        "pkg<198.41.0.4",
        "pkg >198.41.0.4,",
        "lib-198.41.0.4.tar",
        "Version 1.2.3.4",
        "Release 198.41.0.4",
        "see section 4.3.2.1",
        "1.2.3.4",
        "v10.12.14.16",
        "pkg==198.41.0.4",
    ],
)
def test_a_version_number_is_not_an_ip_address(text: str) -> None:
    assert found(text) == []


def test_four_small_numbers_are_an_ip_address_next_to_a_label() -> None:
    assert found("DNS server 8.8.8.8") == [("ip", "8.8.8.8")]


def test_only_issuable_social_security_numbers_are_found() -> None:
    assert found("SSN 123-45-6789") == [("ssn", "123-45-6789")]
    assert found("SSN: 123456789") == [("ssn", "123456789")]
    assert found("number 123456789") == []
    for never in ("000-12-3456", "666-12-3456", "912-34-5678", "123-00-4567", "123-45-0000", "078-05-1120"):
        assert found(f"SSN {never}") == []


@pytest.mark.parametrize("text", ["#{}", "-{}", "x,{},1", "SSN/{}", "SSN.{}", "_{}_", "SSN {}[1]", "SSN {}(void)"])
def test_a_social_security_number_is_found_next_to_any_character(text: str) -> None:
    assert found(text.format("123-45-6789")) == [("ssn", "123-45-6789")]


def test_a_taxpayer_number_needs_a_label() -> None:
    assert found("ITIN 912-70-1234") == [("ssn", "912-70-1234")]
    assert found("It has 912-70-1234 and ITIN 912-34-5678") == []


@pytest.mark.parametrize("number", ["123 45-6789", "123-456789"])
def test_inconsistent_separators_need_a_label(number: str) -> None:
    assert found(f"SSN {number}") == [("ssn", number)]
    assert found(f"It has {number}") == []


@pytest.mark.parametrize("gap", [".", " ", " - "])
def test_a_social_security_number_without_dashes_needs_a_label(gap: str) -> None:
    number = gap.join(("123", "45", "6789"))
    assert found(f"SSN {number}") == [("ssn", number)]
    assert found(f"count {number}") == []


@pytest.mark.parametrize(
    "text",
    [
        "Card {} 123",
        "Card 123 {}",
        "Card, exp 2030 {}",
        "jo,{},123",
        "{}-123",
        "-{}",
        "Card#{}",
        "card{}",
        "Visa {}exp 12/30",
        "{}[1]",
        "{}(visa)",
    ],
)
@pytest.mark.parametrize("number", ["4111111111111111", "4111 1111 1111 1111"])
def test_a_card_number_is_found_next_to_any_character(text: str, number: str) -> None:
    assert found(text.format(number)) == [("card", number)]


@pytest.mark.parametrize("gap", [".", "/", "-", " - ", "\u00a0", "\u2011"])
def test_a_card_number_is_found_with_other_separators(gap: str) -> None:
    number = gap.join(("4111", "1111", "1111", "1111"))
    assert found(f"Card {number}") == [("card", number)]


def test_adjacent_card_numbers_are_separate_and_a_table_row_is_not_one() -> None:
    two = "4111 1111 1111 1111 4242 4242 4242 4242"
    assert found(two) == [("card", two[:19]), ("card", two[20:])]
    assert found("12 34 4111 1111 1111 1111") == []


@pytest.mark.parametrize(
    "number", ["4111111111111111", "4111 1111 1111 1111", "5555-5555-5555-4444", "3782 822463 10005", "36227206271667"]
)
def test_a_card_number_has_an_issuer_a_length_and_a_check_digit(number: str) -> None:
    assert found(f"paid with {number}.") == [("card", number)]
    wrong = number[:-1] + str((int(number[-1]) + 1) % 10)
    assert found(f"paid with {wrong}.") == []


def test_digits_inside_longer_strings_are_not_a_card_number() -> None:
    assert found("0.4111111111111111 x4111111111111111 4111111111111111e5 44111111111111111111") == []


def test_an_iban_has_the_length_and_check_digits_of_its_country() -> None:
    assert found("IBAN DE89 3704 0044 0532 0130 00, BIC X") == [("iban", "DE89 3704 0044 0532 0130 00")]
    assert found("(NO9386011117947)") == [("iban", "NO9386011117947")]
    assert found("DE88 3704 0044 0532 0130 00 DE893704004405320130001 XX89370400440532013000") == []


@pytest.mark.parametrize(
    "number",
    [
        "de89370400440532013000",
        "De89 3704 0044 0532 0130 00",
        "gb29nwbk60161331926819",
        "GB29nwbk60161331926819",
        "DE89-3704-0044-0532-0130-00",
        "DE89.3704.0044.0532.0130.00",
        "DE89  3704  0044  0532  0130  00",
        "DE89 3704 0044\n0532 0130 00",
        "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
        "ＤＥ89370400440532013000",
    ],
)
@pytest.mark.parametrize("text", ["iban {}", "IBAN:{}[1]", "({})", "{}BIC", "iban{}, thanks", "my iban{}"])
def test_an_iban_can_be_lower_case_with_other_separators_and_next_to_its_label(text: str, number: str) -> None:
    assert found(text.format(number)) == [("iban", number)]


def test_random_letters_and_digits_are_not_an_iban() -> None:
    rng = random.Random(5)
    made = [rng.randbytes(size).hex() for size in (7, 8, 9, 10, 11, 12, 16, 20, 32) for _ in range(1000)]
    made += [str(uuid.UUID(bytes=rng.randbytes(16))) for _ in range(3000)]
    made += [base64.b64encode(rng.randbytes(48)).decode() for _ in range(3000)]
    assert len(found("\n".join(made), kinds=("iban",))) <= 1


@pytest.mark.parametrize("gap", [": ", ":", "=", ","])
@pytest.mark.parametrize(
    "address",
    [
        "123 Elm Street, Springfield, IL 62704",
        "123 Elm Street,Springfield,IL 62704",
        "123\u00a0Elm\u00a0Street, Springfield, IL\u00a062704",
        "123 Elm Street\r\nSpringfield, IL 62704",
        "Musterstraße 12,12345 Musterstadt",
        "Musterstraße 12 – 12345 Musterstadt",
        "Musterstraße 12; 12345 Musterstadt",
        "Musterstraße 12\n\n12345 Musterstadt",
        "12 rue de la Paix,75002 Paris",
        "10 Downing Street,London SW1A 2AA",
    ],
)
def test_an_address_is_found_after_any_label_and_with_other_separators(gap: str, address: str) -> None:
    assert found(f"Address{gap}{address}[1]") == [("address", address)]


@pytest.mark.parametrize(
    "address",
    [
        "123 Elm Street, Apt 45, Springfield, IL 62704",
        "9 Old Mill Road\nExampleville, TX 75001",
        "P.O. Box 123, Sampleville, IL 62704",
        "Flat 2, 17 Invented Gardens, Leeds LS1 4AP",
        "Musterstraße 12, 12345 Musterstadt",
        "Am Markt 5\n01234 Neustadt",
        "Hauptstrasse 3, 8001 Zürich",
        "Max-Muster-Gasse 9/4\n1010 Wien",
        "3 bis, avenue du Modèle, 69003 Lyon",
        "9446 Placeholder Burg Apt. 483\nSampleburgh, TX 57548",
        "410 Specimen Crescent\nSampleton, ON K1A 0B1",
        "Musterstraße 1\nD - 12345 Musterstadt",
        "Musterstr. 1, D 12345 Musterstadt",
        "17 rue de l'Exemple\nF - 94270 Exempleville",
        "Voorbeeldstraat 12, 1012 AB Amsterdam",
        "Voorbeeldstraat 12\n  NL-1012 AB  's-Voorbeeld",
        "Calle del Ejemplo 47, 28013 Madrid",
        "Via del Campione 12, 00184 Roma (RM)",
    ],
)
def test_a_street_with_postcode_and_town_is_an_address(address: str) -> None:
    assert found(f"See: {address}.") == [("address", address)]


def test_a_street_alone_is_an_address_only_next_to_a_label() -> None:
    assert found("They met at 10 Downing Street in May.") == []
    assert found("She lives at 10 Downing Street.") == [("address", "10 Downing Street")]
    assert found("On 5 January 1950 The Court sat, 7 Days Way out.") == []


def test_of_overlapping_spans_the_better_is_kept_and_the_rest_of_the_other() -> None:
    text = "+49 4111 1111 1111 1111 12 SSN 123 45 6789 or 5 Old Road"
    card, phone = PiiSpan("card", 4, 23, Evidence.CHECKSUM), PiiSpan("phone", 0, 26, Evidence.PATTERN)
    weak, long = PiiSpan("ssn", 24, 42, Evidence.CONTEXT), PiiSpan("address", 46, 56, Evidence.PATTERN)
    inside = PiiSpan("phone", 46, 50, Evidence.PATTERN)
    assert resolve([phone, weak, card, inside, long], text) == [
        phone._replace(end=3),
        card,
        phone._replace(start=24),
        weak._replace(start=27),
        long,
    ]


def test_a_remainder_without_a_letter_or_digit_is_not_a_span() -> None:
    text = "(4111 1111 1111 1111)."
    card = PiiSpan("card", 1, 20, Evidence.CHECKSUM)
    assert resolve([PiiSpan("phone", 0, 22, Evidence.PATTERN), card], text) == [card]


def test_only_the_configured_kinds_are_found() -> None:
    text = "jo@example.com, 198.41.0.4, SSN 123-45-6789"
    assert [span.kind for span in find(text, kinds=("ip",))] == ["ip"]
    assert [span.kind for span in find(text, kinds=("email", "ssn"))] == ["email", "ssn"]


@pytest.mark.parametrize(
    "text",
    [
        "Message-ID: <3F5A1B2C.7080905@example.org>",
        "In-Reply-To: <200304051212.h35CC1f12345@mail.example.org>",
        "References: <Pine.LNX.4.44.0304051212390.1234-100000@example.org> <19981201123456.AA28105@example.org>",
        "id = <000a01c2f3$6b1d2e30$6401a8c0@example.org>",
        "2014-01-13:52D44CC6.4050707@example.com:",
        "as <E18kbHo-0001AB-00@example.org> says",
        "<CAF7eDa1b2C3d4E5f6G7h8J9k0LmNoPqRsTuVwXyZ+aB=cD-eF_gH@mail.example.com>",
        "<1b4e28ba-2fa1-11d2-883f-0016d3cca427@example.org>",
        '"message_id": "<short@example.org>"',
    ],
)
def test_a_message_id_is_not_an_email_address(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "address",
    [
        *("jane.doe1984@example.org", "12345678@example.com", "1234567890.jane@example.com", "e12.dora@example.org"),
        *("anna-maria.van-den-berg-1990@example.org", "deadbeef@example.org", "jane200304051212@example.org"),
    ],
)
def test_an_email_address_with_many_digits_is_found(address: str) -> None:
    assert found(f"Write to <{address}>, please.") == [("email", address)]


@pytest.mark.parametrize(
    "text", ["XFree86-4.2.99.3 is out", "see libpng-1.2.44.71", "openssl_fips-98.7.65.43, patched"]
)
def test_a_name_with_a_version_is_not_an_ip_address(text: str) -> None:
    assert found(text, kinds=("ip",)) == []


def test_both_ip_addresses_around_a_dash_are_found() -> None:
    assert found("from 93.184.215.14-93.184.215.20 on") == [("ip", "93.184.215.14"), ("ip", "93.184.215.20")]


@pytest.mark.parametrize("text", ["a value of +6073641856.9 then", "rose by +4930123456.75 in all", "+441632960961.5"])
def test_an_amount_with_decimals_is_not_a_telephone_number(text: str) -> None:
    assert found(text) == []
    assert found("Ring +49 30 23125 123. Thanks") == [("phone", "+49 30 23125 123")]


@pytest.mark.parametrize(
    "text",
    [
        "Of 5 East Orange, NJ 07018 schools",
        "In 3 West Palm Beach, FL 33401 and elsewhere",
        "about 300 New York, NY 10001 families",
        "these 250 Springfield Armory, MA 01105 workers",
        "in 1998 Smith Houston, TX 77002 left",
    ],
)
def test_a_count_before_a_place_name_is_not_a_house_number(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (
            "1400 Smith Houston, TX 77002 USA 713 853 3848",
            [("address", "1400 Smith Houston, TX 77002"), ("phone", "713 853 3848")],
        ),
        ("at 500 East Elm Chicago, IL 60601.", [("address", "500 East Elm Chicago, IL 60601")]),
        ("5 West Broadway Boston, MA 02127", [("address", "5 West Broadway Boston, MA 02127")]),
        ("x@spokesman.com(509) 459-5382", [("email", "x@spokesman.com"), ("phone", "(509) 459-5382")]),
    ],
)
def test_an_address_or_number_followed_by_other_characters_is_found(text: str, spans: list[tuple[str, str]]) -> None:
    assert found(text) == spans
