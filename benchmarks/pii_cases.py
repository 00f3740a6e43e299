"""Sentences with personal data whose place is known, and sentences with numbers that are nobody's.

    from benchmarks.pii_cases import cases

Made for `benchmarks.pii` and its floors in the tests; the same seed gives the same sentences. What they are made of,
and why none of it belongs to a person, stands in `benchmarks.pii_values`.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.pii_values import (
    ADDRESSES,
    AROUND,
    BARE,
    CARDS,
    IBANS,
    MAIL_HOSTS,
    MAIL_NAMES,
    PHONES,
    PUBLIC_V4,
    PUBLIC_V6,
    RARE,
    SSNS,
)

Gold = tuple[str, int, int]


@dataclass(frozen=True)
class Case:
    """A text and the personal data in it: (kind, start, end) in code points."""

    text: str
    gold: tuple[Gold, ...]
    topic: str
    """The kind that the case is about, or what the hard negative looks like."""


def _mail(rng: random.Random) -> str:
    address = f"{rng.choice(MAIL_NAMES.split())}@{rng.choice(MAIL_HOSTS.split())}"
    return rng.choice((address, address, address.title(), address.upper()))


def _spelt(rng: random.Random) -> str:
    """Returns an address with "(at)" and, most often, "(dot)"."""
    at, dot = rng.choice(
        ((" (at) ", " (dot) "), (" [at] ", " [dot] "), ("(at)", "(dot)"), (" [at] ", "."), ("(at)", "."))
    )
    name, host = rng.choice(MAIL_NAMES.split()), rng.choice(MAIL_HOSTS.split())
    return name + at + host.replace(".", dot)


def rare() -> list[Case]:
    """Returns the rare forms, the same every time."""
    made = []
    for kind, marked in RARE.items():
        for sentence in marked:
            pieces = re.split("[«»]", sentence)
            starts = [sum(map(len, pieces[:index])) for index in range(len(pieces))]
            gold = tuple(
                (kind, starts[index], starts[index] + len(pieces[index])) for index in range(1, len(pieces), 2)
            )
            made.append(Case("".join(pieces), gold, f"rare_{kind}"))
    return made


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


def _phone(rng: random.Random, forms: str) -> str:
    form = rng.choice(forms.split()).replace("~", " ")
    return "".join(rng.choice("0123456789") if character == "#" else character for character in form)


def _grouped(number: str, sizes: tuple[int, ...], gap: str) -> str:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(number[at : at + size])
        at += size
    return gap.join(piece for piece in pieces if piece)


def _card(rng: random.Random, number: str) -> str:
    gap = rng.choice(("", " ", "-"))
    sizes = {15: (4, 6, 5), 14: (4, 6, 4)}.get(len(number), (4, 4, 4, 4))
    return _grouped(number, sizes, gap) if gap else number


def _iban(rng: random.Random, number: str) -> str:
    return _grouped(number, (4,) * 9, " ") if rng.random() < 0.6 else number


def _put(frame: str, value: str, kind: str, topic: str) -> Case:
    before, _, after = frame.partition("{}")
    return Case(before + value + after, ((kind, len(before), len(before) + len(value)),), topic)


def positive(rng: random.Random) -> list[Case]:
    """Returns one round of cases, every kind and country at least once."""
    made = [_put(rng.choice(AROUND["email"]), _mail(rng), "email", "email")]
    made.append(_put(rng.choice(AROUND["email"][:6]), _spelt(rng), "email", "email_spelt"))
    made.append(_put(rng.choice(AROUND["ssn"]), rng.choice(SSNS.split()), "ssn", "ssn"))
    made.append(_put("SSN {}", rng.choice(SSNS.split()).replace("-", rng.choice((" ", ""))), "ssn", "ssn"))
    made.append(_put(rng.choice(AROUND["card"]), _card(rng, rng.choice(CARDS.split())), "card", "card"))
    made.append(_put(rng.choice(AROUND["iban"]), _iban(rng, rng.choice(IBANS.split())), "iban", "iban"))
    made.append(_put(rng.choice(AROUND["ip"]), rng.choice(PUBLIC_V4.split()), "ip", "ip"))
    made.append(_put(rng.choice(AROUND["ip"][:5]), rng.choice(PUBLIC_V6.split()), "ip", "ip"))
    for country, addresses in ADDRESSES.items():
        frame = rng.choice(AROUND["address"][country])
        made.append(_put(frame, rng.choice(addresses), "address", f"address_{country}"))
    for country, forms in PHONES.items():
        made.append(_put(rng.choice(AROUND["phone"][country]), _phone(rng, forms), "phone", f"phone_{country}"))
    for country, (forms, *frames) in BARE.items():
        made.append(_put(rng.choice(frames), _phone(rng, forms), "phone", f"phone_{country}"))
    return made


def _hex(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789abcdef") for _ in range(count))


def _wrong_card(rng: random.Random) -> str:
    number = rng.choice(CARDS.split())
    return _card(rng, number[:-1] + str((int(number[-1]) + rng.randint(1, 9)) % 10))


def _wrong_iban(rng: random.Random) -> str:
    number = rng.choice(IBANS.split())
    return _iban(rng, number[:2] + f"{(int(number[2:4]) + rng.randint(1, 90)) % 97:02d}" + number[4:])


def _table(rng: random.Random) -> str:
    return "\n".join(" ".join(_digits(rng, rng.choice((2, 3, 4))) for _ in range(8)) for _ in range(4))


NEGATIVE: dict[str, Callable[[random.Random], str]] = {
    "order": lambda r: f"Your order {_digits(r, 10)} has shipped; invoice INV-{r.randint(2000, 2030)}-{_digits(r, 4)}.",
    "order_called": lambda r: f"Call us about order {_digits(r, 10)} any time.",
    "isbn": lambda r: f"ISBN 978-{r.randint(0, 9)}-{_digits(r, 2)}-{_digits(r, 6)}-{r.randint(0, 9)}, 240 pages",
    "isbn_bare": lambda r: f"ISBN: 978{_digits(r, 10)}",
    "date": lambda r: f"Held on {r.randint(1900, 2030)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d} and 12.04.1998.",
    "dates": lambda r: f"Filed 01.02.{r.randint(1990, 2020)}-03.04.{r.randint(2021, 2029)} in court.",
    "years": lambda r: f"Seasons {r.randint(1950, 1980)}-{r.randint(1981, 2010)}, 2010 2011 2012 2013, were dry.",
    "version": lambda r: f"Version {r.randint(1, 9)}.{r.randint(0, 30)}.{r.randint(0, 99)}.{r.randint(0, 200)} is out.",
    "version_small": lambda r: f"Upgrade from {r.randint(1, 9)}.2.3.4 to {r.randint(1, 9)}.3.0.0 first.",
    "section": lambda r: f"See section {r.randint(1, 9)}.{r.randint(1, 9)}.{r.randint(1, 9)}.{r.randint(1, 9)} below.",
    "timestamp": lambda r: (
        f"At {r.randint(1_500_000_000, 1_800_000_000)} or 2024-03-01T12:{r.randint(10, 59)}:07.123456Z"
    ),
    "millis": lambda r: f'{{"time": {r.randint(1_500_000_000_000, 1_800_000_000_000)}, "n": {_digits(r, 3)}}}',
    "hash": lambda r: f"commit {_hex(r, 40)} and md5 {_hex(r, 32)}",
    "uuid": lambda r: f"id={_hex(r, 8)}-{_hex(r, 4)}-4{_hex(r, 3)}-a{_hex(r, 3)}-{_hex(r, 12)}",
    "price": lambda r: (
        f"It cost ${r.randint(1, 9)},{_digits(r, 3)},{_digits(r, 3)}.00 or 1.{_digits(r, 3)}.{_digits(r, 3)} €."
    ),
    "coordinates": lambda r: f"at {r.randint(10, 80)}.{_digits(r, 6)}, -{r.randint(10, 170)}.{_digits(r, 6)}",
    "product": lambda r: (
        f"Part {_digits(r, 3)}-{_digits(r, 4)}-{_digits(r, 3)}, model AB-{_digits(r, 3)}-{_digits(r, 7)}"
    ),
    "product_phone": lambda r: f"SKU 415-555-01{_digits(r, 2)} is sold out.",
    "card_luhn": lambda r: f"Card number {_wrong_card(r)} was mistyped.",
    "iban_checksum": lambda r: f"IBAN {_wrong_iban(r)} does not exist.",
    "private_ip": lambda r: (
        f"Connect to 192.168.{r.randint(0, 255)}.{r.randint(1, 254)} or 10.0.{r.randint(0, 255)}.1."
    ),
    "example_ip": lambda r: f"Say ping 203.0.113.{r.randint(1, 254)} or 2001:db8::{_hex(r, 2)} from 127.0.0.1.",
    "network": lambda r: f"The network {r.choice(PUBLIC_V4.split()).rpartition('.')[0]}.0/24 is large.",
    "handle": lambda r: f"Follow @{r.choice(MAIL_NAMES.split())} and @jane.doe, @max@social.example, RT @maxm: hello",
    "decorator": lambda r: f"@app.route('/x{r.randint(1, 9)}')\n@functools.wraps(f)\ndef view(): ...",
    "npm": lambda r: f"npm install @scope/pkg@{r.randint(1, 20)}.{r.randint(0, 20)}.0 vue@next lodash@4.17.21",
    "git": lambda r: f"git clone git@git.example.org:team/repo{r.randint(1, 99)}.git",
    "url_user": lambda r: f"postgres://user:secret@db{r.randint(1, 9)}.example.com:5432/x and ssh://root@example.org/",
    "url_number": lambda r: (
        f"https://example.com/item/{_digits(r, 10)}?page={r.randint(1, 9)}&t=415-555-01{_digits(r, 2)}"
    ),
    "matrix": lambda r: f"y = x@w.T + b  # {r.randint(2, 9)} x {r.randint(2, 9)}; a@b.shape",
    "brackets": lambda r: f"Meet (at) noon. Time (AT) {r.randint(1, 9)}.{r.randint(1, 9)} min; example [dot] matrix.",
    "image": lambda r: f"icon@{r.randint(2, 3)}x.png and logo@2x.webp",
    "table": lambda r: _table(r),
    "floats": lambda r: f"[0.{_digits(r, 16)}, -1.{_digits(r, 15)}, {r.randint(1, 9)}.{_digits(r, 10)}e-05]",
    "doi": lambda r: (
        f"doi:10.{_digits(r, 4)}/s{_digits(r, 5)}-{_digits(r, 3)}-{_digits(r, 4)}-{_digits(r, 1)}, PMID {_digits(r, 8)}"
    ),
    "arxiv": lambda r: f"arXiv:{r.randint(10, 24)}{r.randint(1, 12):02d}.{_digits(r, 5)}v2 [cs.CL]",
    "mac": lambda r: (
        "Ethernet " + ":".join(_hex(r, 2) for _ in range(6)) + f" up {r.randint(1, 23)}:{r.randint(10, 59)}:00"
    ),
    "cpp": lambda r: f"std::vector<a::b> c{r.randint(1, 9)}; face::cafe(2001);",
    "ssn_void": lambda r: (
        f"SSN {r.choice(('000-12-3456', '666-12-3456', '912-34-5678', '123-00-4567', '123-45-0000'))}"
    ),
    "street": lambda r: f"On 5 January {r.randint(1950, 2020)} The Court sat; 42 Million People; 7 Days Way out.",
    "count": lambda r: f"In 12 {r.randint(10000, 99999)} Menschen, und 3 {r.randint(10000, 99999)} Euro.",
    "sum": lambda r: (
        f"{r.randint(1, 9)} + {r.randint(10, 99)} {_digits(r, 3)} {_digits(r, 3)} = "
        f"{r.randint(1, 9)}.{_digits(r, 9)} + {r.randint(1, 9)}.{_digits(r, 9)}; "
        f"up + {r.randint(10, 99)} {_digits(r, 3)} {_digits(r, 3)} in all"
    ),
    "population": lambda r: (
        f"The town had {r.randint(1, 9)} {_digits(r, 3)} {_digits(r, 3)} people in {r.randint(1900, 2020)}."
    ),
    "score": lambda r: (
        f"They won 6-4 3-6 7-5, then {r.randint(10, 99)}-{r.randint(10, 99)}-{r.randint(10, 99)} in 1 h 30."
    ),
    "pi": lambda _: "pi is 3.14159265358979323846264338327950288419716939937510",
    "range": lambda r: (
        f"Patients {r.randint(100, 999)}-{r.randint(1000, 1999)}-{r.randint(2000, 2999)} were aged 20-30."
    ),
}


def cases(rounds: int, seed: int = 1) -> list[Case]:
    """Returns `rounds` rounds of every kind, country and hard negative, single sentences and whole paragraphs."""
    rng = random.Random(seed)
    made: list[Case] = []
    for _ in range(rounds):
        single = positive(rng) + [Case(make(rng), (), f"not_{name}") for name, make in NEGATIVE.items()]
        made += single
        mixed = rng.sample(single, 6)
        made.append(_joined(mixed, rng.choice(("\n", "\n\n", "\n"))))
    return made


def _joined(parts: list[Case], gap: str) -> Case:
    text, gold = "", []
    for part in parts:
        gold += [(kind, len(text) + start, len(text) + end) for kind, start, end in part.gold]
        text += part.text + gap
    return Case(text, tuple(gold), "mixed")
