"""Personal data: precision and recall on generated sentences, false matches per megabyte, speed.

    python -m benchmarks.pii [--data FOLDER] [--credits FILE] [--documents FOLDER ...] [--rounds 100] [--shown 5]

Sentences: common forms with hard negatives and, separately, rare forms; equal seeds give equal sentences. They have the
same authors as the recognisers: they test the intended forms and known gaps (rare forms), not the usage on the web.
They contain no real personal data. Telephone numbers come from the ranges that regulators reserve for
films (555-01xx, Ofcom's, the Bundesnetzagentur's, Arcep's, ACMA's) or count up if a country has none. Cards are the
networks' test numbers, IBANs the examples of the IBAN registry, mailboxes are below reserved names (RFC 2606), IP
addresses are public resolvers and root name servers, social security numbers are the placeholders of forms.

`--data` names a folder with `text_domains`, `toxicity_pii` and `pdf`: counts per kind, and samples to read. Speed is
CPU seconds of the annotator in one process, best of three, against a bare search of the same texts for digits, the
lower bound for any search for numbers.

`--credits` and `--documents` are real texts with postal addresses, identified independently of our patterns:

- `--credits`: /usr/share/doc/linux-doc-6.1/CREDITS.gz, the CREDITS of the Linux kernel, in which about 400 people give
  theirs, in lines that start with "S:". Those with a state and a postcode of the United States count, in three layouts:
  on consecutive lines, the same indented by two spaces, and in one sentence with commas. Half of the people,
  by a hash of their name, were inspected while the patterns were written (`seen`), the other half were not.
- `--documents`: folders such as /usr/share/doc, with copyright files, licenses and readmes. A state with its postcode,
  found by a simple pattern, must be masked together with the last number before it, which is that of the house or box.

An address is found whole if every digit of it is masked. Each address counts once. Writes `pii.json`.
"""

import gzip
import hashlib
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import keep, parser, spent, texts_of
from tasks.filters.batch import DocumentBatch
from tasks.filters.pii import Pii
from tasks.filters.recognisers.scan import find
from tasks.formats.documents.text import clean

DOMAINS = ("wiki", "books", "code", "techdocs", "web", "academic", "reviews", "speech", "math", "masc")
_DIGIT = re.compile("[0-9]")
_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|DC|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR"
    "|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware"
    "|Florida|Georgia|Hawaii|Idaho|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts"
    "|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|New York"
    "|North Carolina|South Carolina|North Dakota|South Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|Rhode Island"
    "|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
)
_LAST_LINE = re.compile(rf"\b(?:{_STATES})\.?,?\s{{1,20}}\d{{5}}(?:-\d{{4}})?\b")
_NAMES = re.compile(r"copyright|LICEN[CS]E|README|AUTHORS|CREDITS|\.(?:txt|rst|md|[1-8])(?:\.gz)?$")
_LARGEST = 3_000_000
_STREET = 75
"""Characters before the state in which the number of the house stands."""
Gold = tuple[str, int, int]


@dataclass(frozen=True)
class Case:
    """A text and the personal data in it: (kind, start, end) in code points."""

    text: str
    gold: tuple[Gold, ...]
    topic: str
    """The kind that the case is about, or what the hard negative looks like."""


# Parts of the sentences

CARDS = (
    "4111111111111111 4012888888881881 4242424242424242 5555555555554444 5105105105105100 2223003122003222 "
    "378282246310005 371449635398431 6011111111111117 6011000990139424 30569309025904 38520000023237 3530111333300000 "
    "3566002020360505 6200000000000005 6759649826438453"
)
IBANS = (
    "DE89370400440532013000 GB29NWBK60161331926819 FR1420041010050500013M02606 ES9121000418450200051332 "
    "IT60X0542811101000000123456 NL91ABNA0417164300 BE68539007547034 CH9300762011623852957 AT611904300234573201 "
    "SE4550000000058398257466 PL61109010140000071219812874 NO9386011117947 DK5000400440116243 FI2112345600000785 "
    "PT50000201231234567890154 IE29AIBK93115212345678 BR1800360305000010009795493C1 TR330006100519786457841326"
)
PUBLIC_V4 = (
    "198.41.0.4 199.9.14.201 192.33.4.12 199.7.91.13 192.203.230.10 192.5.5.241 198.97.190.53 192.36.148.17 "
    "193.0.14.129 199.7.83.42 202.12.27.33 208.67.222.222 149.112.112.112 84.200.69.80"
)
PUBLIC_V6 = (
    "2606:4700:4700::1111 2001:4860:4860::8888 2620:fe::fe 2001:503:ba3e::2:30 2001:500:200::b 2001:7fd::1 2001:dc3::35"
)
SSNS = "123-45-6789 111-22-3333 222-33-4444 333-44-5555 444-55-6666 555-66-7777 111-11-1111 222-22-2222"

MAIL_NAMES = "jo.doe jane_roe max.mustermann m.dupont anna+news info j-smith o.e.r r2d2 kontakt jose.garcia x"
MAIL_HOSTS = "example.com example.org mail.example.net post.example.de shop.example.co.uk xn--bcher-kva.example"

# Formats of numbers in each country; "~" is a space, "#" a free digit of an unassigned range.
PHONES = {
    "US": (
        "(415)~555-01## 415-555-01## 415.555.01## (312)~555-01## +1~212-555-01## +1~(646)~555-01## 1-800-555-01## "
        "+14155550100 1.305.555.01## (415)555-01## +~1~(415)~555-01##"
    ),
    "CA": "(416)~555-01## 604-555-01## +1~613~555~01## 1-514-555-01##",
    "GB": (
        "020~7946~0### (020)~7946~0### +44~20~7946~0### 0131~496~0### +44~(0)161~496~0### 0117-496-0### "
        "0044~20~7946~0### +442079460### +~44~20~7946~0###"
    ),
    "DE": (
        "030/23125### (030)~23125-### +49~30~23125~### 0221~4710~### 040/66969~### +49~(0)69~90009-### +491713920099 "
        "0049~40~66969~### (0049)~30~23125~###"
    ),
    "FR": "01~99~00~##~## 02.61.91.##.## 03-53-01-##-## +33~4~65~71~##~## +33~(0)5~36~49~##~## 0199000###",
    "ES": "612~345~678 912~345~678 +34~612~345~678 91~234~56~78 +34~912345678 612345678",
    "IT": "347~1234567 06~1234~5678 +39~347~123~4567 02/12345678 +39~06~1234~5678 3471234567",
    "NL": "06-12345678 020-1234567 +31~6~12345678 010~123~45~67 06~12~34~56~78 +31~(0)20~123~4567",
    "IN": "98765~43210 +91~98765~43210 022-23456789 09876543210 +91-98765-43210 9876543210",
    "BR": "(11)~98765-4321 (21)~3333-4444 +55~11~98765-4321 (11)~3456-7890 11~98765-4321",
    "other": "+61~2~5550~1234 +61~491~570~156 +46~8~465~004~00 +353~20~911~0000 +81~3~1234~5678",
}

ADDRESSES = {
    "US": (
        "123 Elm Street, Springfield, IL 62704",
        "742 Sample Ave., Apt 4B, Portland, OR 97201",
        "55 W. 3rd St, Suite 210, New Example, New York 10001-1234",
        "9 Old Mill Road\nExampleville, TX 75001",
        "1020 N Placeholder Blvd, Unit 7",
        "4400 Invented Oaks Drive, Los Ejemplos, California 90001",
    ),
    "GB": (
        "14 Sample Road, Exeter EX1 2AB",
        "221 Placeholder Street, London, NW1 6XE",
        "3 The Maltings, Little Example, Norfolk, NR12 8XX",
        "Flat 2, 17 Invented Gardens, Leeds LS1 4AP",
        "8 Specimen Close\nBristol\nBS1 5TR",
    ),
    "DE": (
        "Musterstraße 12, 12345 Musterstadt",
        "Beispielweg 7a, 54321 Beispielhausen",
        "Am Markt 5, 01234 Neustadt",
        "Max-Muster-Allee 101\n80001 München",
        "Probestr. 3, D-50001 Köln",
        "Lange Straße 44, 20001 Hamburg",
        "Modellgasse 9\n61348 Bad Homburg",
        "Probeweg 2, 60001 Frankfurt am Main",
    ),
    "FR": (
        "12 rue de l'Exemple, 75002 Paris",
        "3 bis, avenue du Modèle, 69003 Lyon",
        "45, boulevard Jean Exemple\n13001 Marseille",
        "8 place de la Maquette, 31000 Toulouse",
        "110 chemin des Échantillons, 06000 Nice",
        "7 rue du Spécimen, 42000 Saint-Étienne",
    ),
    "CA": ("410 Specimen Crescent Unit 8\nSampleton, ON K1A 0B1", "12 Invented Bay, Exampleville, BC V0N 1X0"),
    "NL": ("Voorbeeldstraat 12, 1012 AB Amsterdam", "Lange Modelgracht 7b\n3511 XX Utrecht"),
    "ES": ("Calle del Ejemplo 47, 28013 Madrid", "Avenida de la Muestra, 5\n46001 Valencia"),
    "IT": ("Via del Campione 12, 00184 Roma (RM)", "Piazza Esempio, 3\n20121 Milano"),
}

# By language: the context of a value. "{}" is the value.
AROUND: dict[str, Any] = {
    "email": (
        "Write to {} for details.",
        "Contact: {}",
        "Schreiben Sie an {}, wir antworten.",
        "Envoyez un message à {}.",
        "Escríbenos a {} o visítanos.",
        "Scrivete a {}; grazie.",
        "Mail naar <{}>.",
        "ईमेल: {}",
        "联系邮箱{}谢谢",
        "See mailto:{}?subject=hello",
        "“{}” is what she gave",
    ),
    "ssn": ("SSN: {}", "His social security number is {}.", "Employee {} (SSN)", "Social Security No. {}, issued here"),
    "card": (
        "Card: {}",
        "Charged to Visa {} on Monday.",
        "Kreditkarte {} gültig bis 12/30",
        "Carte bancaire n° {}.",
        "Paid with {}, thanks",
        "tarjeta {}",
    ),
    "iban": (
        "IBAN: {}",
        "Bitte überweisen auf {} bei der Musterbank.",
        "Compte {}.",
        "Rekening {}, t.n.v. Jan",
        "({})",
    ),
    "ip": (
        "Login from {} refused.",
        "client {} - GET /index.html",
        "The IP address {} was banned.",
        "IP: {}",
        "Edited by {} at noon",
        "http://{}/status",
    ),
    "address": {
        "US": ("She lives at {}.", "Ship to: {}", "Our office, {}, is open.", "Mailing address\n{}\nThank you"),
        "GB": ("Our address: {}.", "Send it to {}", "Visit us at {} any day."),
        "DE": ("Anschrift: {}", "Er wohnt in der {}.", "Muster GmbH, {}"),
        "FR": ("Adresse : {}", "Elle habite {}.", "Société Exemple, {}"),
        "CA": ("Ship to {}.", "The office: {}"),
        "NL": ("Adres: {}", "Kom langs: {}."),
        "ES": ("Dirección: {}", "Vive en {}."),
        "IT": ("Indirizzo: {}", "Sede: {}."),
    },
    "phone": {
        "US": ("Call {} today.", "Phone: {}", "Reach the office at {} or by mail.", "Fax {}", "{} (mobile)"),
        "CA": ("Tel. {}", "Please call {}.", "Contact {} for tickets"),
        "GB": ("Tel: {}", "Ring us on {} before noon.", "Telephone {}, weekdays", "Call {}"),
        "DE": ("Tel.: {}", "Telefon {}", "Rufen Sie uns an: {}", "Telefax {}, Mo-Fr"),
        "FR": ("Tél. : {}", "Téléphone {}", "Appelez le {} dès demain."),
        "ES": ("Teléfono: {}", "Llame al {} ahora.", "Móvil {}"),
        "IT": ("Tel. {}", "Telefono: {}", "Chiamate il {} oggi."),
        "NL": ("Telefoon: {}", "Bel {} voor een afspraak.", "Tel {}"),
        "IN": ("Phone: {}", "Contact no. {}", "मोबाइल: {}", "Call or WhatsApp {}"),
        "BR": ("Telefone: {}", "Ligue para {} hoje.", "WhatsApp {}"),
        "other": ("Call {}.", "Phone {}", "{}"),
    },
}
BARE = {
    "US": ("(415)~555-01## 415-555-01## +1~212-555-01##", "The shop ({}) is open.", "Anna Roe {} Springfield"),
    "GB": ("020~7946~0### +44~20~7946~0###", "The desk is {} on weekdays."),
    "DE": ("+49~30~23125~### (030)~23125-###", "Praxis Muster, {}, Montag"),
    "FR": ("01~99~00~##~## 02.61.91.##.##", "Cabinet Exemple {} sur rendez-vous"),
    "BR": ("(11)~98765-4321", "Loja Exemplo {} aberta"),
}
"""Numbers without any label beside them."""

RARE: dict[str, tuple[str, ...]] = {
    "email": (
        "Reach «o'hara@example.org» soon",
        "E-Mail:«max@müller.example»",
        "«anna.k.@example.com»",
        "write «jo (at) example (dot) org»",
        '«"jo doe"@example.com» is valid',
        "Jo<«jo@[198.41.0.4]»>",
        "josé: «josé@example.com», thanks",
        "<«JO@EXAMPLE.COM»>,<«eve@example.net»>",
        "user=«jo@example.com»&id=7",
        "«jo@example.com».Please reply",
    ),
    "phone": (
        "Call 1-«800-FLOWERS» now",
        "Call «555-0123»",
        "Phone «(415) 555-0123» ext. 12",
        "Tel «+49 (30) 23125-123»",
        "T: «020 7946 0123»",
        "M «+44 20 7946 0123»",
        "Tel. «030–23125123»",
        "Tel. «+33.1.99.00.12.34»",
        "Tél «+33(0)199001234»",
        "Text «415 555 0123» to win",
        "«415 555 0123» is the number",
        "Rufen Sie «0 30 / 2 31 25 - 123» an",
        "WhatsApp: wa.me/«14155550123»",
        "Phone\n«(212) 555-0199»",
        "Tel «+1 415\n555 0123»",
        "tel:«+1-415-555-0123»",
        "Cellulare: «347 12 34 567»",
        "Mob: «+91-98765 43210» / «+91-98765 43211»",
    ),
    "ip": (
        "Blocked «198.41.0.4»:53 twice",
        "[«2606:4700:4700::1111»]:443",
        "from «2606:4700:4700:0:0:0:0:1111» port 22",
        "X-Forwarded-For: «199.7.91.13», 10.0.0.1",
        "src=«198.97.190.53» dst=10.1.1.1",
        "ip-«192-33-4-12».example.net",
        "IP «9.9.9.9» answered",
    ),
    "ssn": ("SSN «123.45.6789»", "ssn=«123-45-6789»;", "SSN:«123456789»", "her social: «123-45-6789»"),
    "card": (
        "«4111-1111 1111 1111» oddly typed",
        "cc=«4111111111111111»&cvv=123",
        "Card «4111.1111.1111.1111»",
        "PAN«5555555555554444»",
        "Card ending 4444; full: «5555  5555  5555  4444»",
    ),
    "iban": (
        "iban «de89370400440532013000»",
        "IBAN:«GB29NWBK60161331926819».",
        "IBAN «DE89-3704-0044-0532-0130-00»",
        "Konto: «AT61 1904 3002 3457 3201», BIC XXXXATWW",
    ),
    "address": (
        "Jo Doe, «123 Elm Street, Springfield 62704»",
        "Address: «77 Massachusetts Avenue»",
        "«P.O. Box 123, Sampleville, IL 62704»",
        "«One Sample Plaza, Sampleville, IL 62704»",
        "Anschrift: «Beispielstr. 5»",
        "«Musterstraße 12 | 12345 Musterstadt»",
        "Wohnhaft «Straße des 17. Juni 135, 10623 Berlin»",
        "«12, RUE DE L'EXEMPLE 75002 PARIS»",
        "«The Old Mill, Sample Lane, Exeter EX1 2AB»",
        "c/o Muster, «Hauptstrasse 3, 8001 Zürich»",
    ),
}
"""Forms outside the common ones, « » around the personal data: written down before they were first tried."""


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
    """Returns the rare forms; deterministic."""
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


def score(tested: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Returns by kind: gold, found, exact, precision and recall of exact spans, and the same of overlapping ones."""
    counts: dict[str, Counter[str]] = {}
    for case in tested:
        found = [span[:3] for span in find(case.text)]
        for one in (*case.gold, *found):
            counts.setdefault(one[0], Counter())
        for one in case.gold:
            counts[one[0]].update(
                gold=1, exact=one in found, reached=any(_meets(one, other) for other in found if other[0] == one[0])
            )
        for one in found:
            counts[one[0]].update(found=1, right=any(_meets(one, other) for other in case.gold if other[0] == one[0]))
    return {kind: _rates(count) for kind, count in sorted(counts.items())}


def _meets(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[1] < other[2] and other[1] < one[2]


def _rates(count: Counter[str]) -> dict[str, float]:
    return {
        "gold": count["gold"],
        "found": count["found"],
        "exact": count["exact"],
        "precision": round(count["exact"] / max(1, count["found"]), 4),
        "recall": round(count["exact"] / max(1, count["gold"]), 4),
        "overlap_precision": round(count["right"] / max(1, count["found"]), 4),
        "overlap_recall": round(count["reached"] / max(1, count["gold"]), 4),
    }


def speed(texts: Sequence[str]) -> dict[str, float]:
    """Returns megabytes of UTF-8 per CPU second, ours and the bare search for digits."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    annotator, batch = Pii(), DocumentBatch(texts)
    annotator.prepare({})
    ours = min(spent(lambda: annotator.measure(batch)) for _ in range(3))
    bare = min(spent(lambda: [_DIGIT.findall(text) for text in texts]) for _ in range(3))
    return {
        "megabytes": round(megabytes, 2),
        "mb_s": round(megabytes / ours, 1),
        "digits_mb_s": round(megabytes / bare, 1),
    }


def read(path: Path) -> list[str]:
    """Reads the texts of a JSONL file, or one plain text."""
    return [path.read_text("utf-8")] if path.suffix == ".txt" else texts_of(path)


def real(data: Path, shown: int) -> dict[str, Any]:
    """Measures the texts below `data`, and prints samples."""
    measured: dict[str, Any] = {}
    for domain in DOMAINS:
        texts = read(data / "text_domains" / f"{domain}.jsonl.zst")
        finds = show(domain, texts, shown)
        measured[domain] = {**speed(texts), "finds": finds}
        print(f"   {measured[domain]}")
    for path in (
        data / "toxicity_pii/dolma_fixture/provided__documents__000.json.gz",
        *sorted(data.glob("pdf/silver_text/*")),
    ):
        show(path.name, read(path), shown)
    return measured


def show(name: str, texts: Sequence[str], shown: int) -> dict[str, int]:
    """Prints the matches with samples to read; returns the counts by kind."""
    finds = [(text, span) for text in texts for span in find(text)]
    counts = dict(sorted(Counter(span.kind for _, span in finds).items()))
    print(f"{name}: {counts}")
    rng = random.Random(1)
    for kind in counts:
        of_kind = [one for one in finds if one[1].kind == kind]
        for text, (_, start, end, evidence) in rng.sample(of_kind, min(shown, len(of_kind))):
            print(f"   {kind} {evidence.name.lower()}: {text[max(0, start - 30) : end + 10]!r}")
    return counts


def in_credits(path: Path) -> dict[str, dict[str, int]]:
    """Returns for each layout, and each half, the number of people and of completely masked addresses."""
    counts: dict[str, Counter[str]] = {}
    for name, lines in _people(path):
        for way, gap in (("lines", "\n"), ("indented", "\n  "), ("sentence", ", ")):
            text = clean(name + gap + gap.join(lines))
            last = _LAST_LINE.search(text)
            if last is None or not any(map(str.isdigit, text[len(name) : last.start()])):
                continue
            count = counts.setdefault(f"{way}, {_half(name)}", Counter())
            count.update(all=1, whole=_is_masked(text, _digits_between(text, len(name), last.end())))
    return {key: dict(count) for key, count in sorted(counts.items())}


def in_documents(folders: Iterable[Path]) -> dict[str, int]:
    """Returns the number of addresses below the folders and of completely masked ones."""
    count = Counter(all=0, whole=0)
    met: set[str] = set()
    for text in _texts(folders):
        for last in _LAST_LINE.finditer(text):
            first = max(0, last.start() - _STREET)
            address = " ".join(re.findall(r"\w+", text[first : last.end()]))[-30:]
            before = _digits_between(text, first, last.start())
            if address in met or not before:
                continue
            met.add(address)
            around = slice(max(0, last.start() - 400), last.end() + 200)
            places = [at - around.start for at in (before[-1], last.end() - 1)]
            count.update(all=1, whole=_is_masked(text[around], places))
    return dict(count)


def _people(path: Path) -> Iterator[tuple[str, list[str]]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for entry in file.read().split("\n\n"):
            fields = [line.partition(":") for line in entry.split("\n")]
            names = [value.strip() for key, _, value in fields if key == "N"]
            lines = [value.strip() for key, _, value in fields if key == "S"]
            if names and lines:
                yield names[0], lines


def _texts(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for root, inner, files in os.walk(folder):
            inner.sort()
            for path in (Path(root, name) for name in sorted(files) if _NAMES.search(name)):
                if path.is_symlink() or path.stat().st_size > _LARGEST or path.name.startswith("CREDITS"):
                    continue
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                yield data.decode("utf-8", "replace")


def _digits_between(text: str, start: int, end: int) -> list[int]:
    """Returns the offsets of the digits."""
    return [at for at in range(start, end) if text[at].isdigit()]


def _is_masked(text: str, places: Sequence[int]) -> bool:
    spans = find(text, ("address",))
    return all(any(span.start <= at < span.end for span in spans) for at in places)


def _half(key: str) -> str:
    return "seen" if hashlib.sha1(key.encode()).digest()[-1] % 2 else "unseen"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, help="folder with text_domains, toxicity_pii and pdf")
    options.add_argument("--credits", type=Path, help="CREDITS.gz of the Linux kernel")
    options.add_argument("--documents", type=Path, nargs="*", default=[], help="folders with copyright files")
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--shown", type=int, default=5, help="number of matches of each kind to print")
    given = options.parse_args()
    tested = cases(given.rounds, seed=1)
    result: dict[str, Any] = {
        "cases": len(tested),
        "common": score(tested),
        "rare": score(rare()),
        "unseen": {
            "persons": in_credits(given.credits) if given.credits else {},
            "documents": in_documents(given.documents),
        },
        "real": real(given.data, given.shown) if given.data else {},
    }
    keep("pii", result)


if __name__ == "__main__":
    main()
