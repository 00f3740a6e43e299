"""Personal data of many countries: telephone numbers, identity numbers and addresses, and false matches on real pages.

    python -m benchmarks.pii_world [--kinds FOLDER] [--texts FILE ...] [--rounds 20] [--shown 0]

Sentences are generated; equal seeds give equal sentences. Frames and addresses have the same authors as the
recognisers, so recall tests the intended forms, not the usage on the web. The numbers do not:

- telephone numbers are variations of the example numbers of `phonenumbers` for 63 countries, in the formats that
  libphonenumber prints, with a label in the language of the country (`national`), in a sentence in that language
  without a label (`bare`, for countries in whose script or format a number is recognizable), and with the digits of
  Arabic, Persian, Hindi and of full width (`digits`);
- identity numbers are random numbers of the printed form whose check digits are valid, with a label, and the same with
  one digit changed, which must not be found if the country has a check digit;
- negatives are orders, dates, prices, accounts and opening hours with labels in the same languages.

`--kinds` names a folder with `pages.jsonl.zst`: pages in 22 languages with the text of the article or thread, in which
personal data is rare. Matches are counted by language and kind; with `--shown`, that many of each are printed to be
read. `--texts` are files of JSON lines of ordinary text. Writes `pii_world.json`.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import phonenumbers
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from benchmarks.harness import json_lines, keep, parser, texts_of
from tasks.filters.recognisers.national_id import SCHEMES, Scheme, has_valid_digits
from tasks.filters.recognisers.regions import COUNTRIES
from tasks.filters.recognisers.scan import find
from tasks.formats.documents.text import clean


class Case(NamedTuple):
    """A text with at most one number in it.

    Attributes:
        text: the sentence.
        value: the personal data in it; "" for a negative.
        topic: what it tests, and the country: "national_JP".
    """

    text: str
    value: str
    topic: str


# Labels by language, and the countries that use it.
_LABELS = {
    "US CA GB IE AU NZ ZA NG KE PH SG MY": ("Phone: {}", "Tel. {}", "Mobile {}", "Call {} today.", "Fax: {}"),
    "IN": ("Phone: {}", "फोन: {}", "मोबाइल {}", "संपर्क करें: {}"),
    "DE AT CH": ("Tel.: {}", "Telefon {}", "Mobil: {}", "Rufen Sie uns an: {}"),
    "FR BE MA": ("Tél. : {}", "Téléphone {}", "Portable : {}"),
    "ES MX AR CL CO PE": ("Teléfono: {}", "Tel. {}", "Móvil: {}", "Llame al {} hoy"),
    "IT": ("Tel. {}", "Telefono: {}", "Cellulare {}"),
    "NL": ("Telefoon: {}", "Tel. {}", "Mobiel {}"),
    "PT BR": ("Telefone: {}", "Tel.: {}", "Contacto: {}"),
    "SE NO DK": ("Telefon: {}", "Tlf. {}", "Mobil {}"),
    "FI": ("Puhelin: {}", "Puh. {}"),
    "PL": ("tel. {}", "Telefon: {}", "tel. kom. {}", "Zadzwoń: {}"),
    "CZ SK": ("Telefon: {}", "Mobil: {}", "Volejte {}"),
    "HU": ("Telefon: {}", "Telefonszám: {}", "Mobil: {}"),
    "RO": ("Telefon: {}", "Tel. {}", "Mobil: {}"),
    "HR RS": ("Telefon: {}", "Tel. {}", "Mobitel: {}"),
    "BG": ("Телефон: {}", "тел. {}", "GSM: {}"),
    "GR": ("Τηλ.: {}", "Τηλέφωνο {}", "Κινητό: {}", "ΤΗΛ. {}"),
    "RU BY KZ": ("Телефон: {}", "тел. {}", "Тел./факс: {}", "моб.: {}", "Звоните {}"),
    "UA": ("Телефон: {}", "тел. {}", "Моб.: {}", "Дзвоніть {}"),
    "TR": ("Telefon: {}", "Tel: {}", "GSM: {}", "Faks: {}"),
    "IL": ("טלפון: {}", "טל' {}", "נייד: {}", "פקס {}"),
    "SA AE EG IQ": ("هاتف: {}", "جوال {}", "الهاتف: {}", "اتصل على {}"),
    "IR": ("تلفن: {}", "موبایل {}", "شماره تماس: {}"),
    "PK": ("Phone: {}", "فون: {}", "رابطہ {}"),
    "BD": ("ফোন: {}", "মোবাইল: {}"),
    "CN": ("电话：{}", "手机：{}", "联系电话{}", "传真: {}", "请致电{}。"),
    "TW HK": ("電話：{}", "手機 {}", "傳真：{}", "聯絡電話{}"),
    "JP": ("電話：{}", "TEL {}", "お問い合わせは{}まで。", "携帯電話{}", "FAX：{}"),
    "KR": ("전화: {}", "전화번호 {}", "휴대폰: {}", "문의: {}"),
    "TH": ("โทร. {}", "โทรศัพท์ {}", "เบอร์โทร: {}", "มือถือ {}"),
    "VN": ("Điện thoại: {}", "ĐT: {}", "Hotline: {}", "SĐT {}"),
    "ID": ("Telepon: {}", "Telp. {}", "HP: {}"),
}
LABELS = {country: frames for countries, frames in _LABELS.items() for country in countries.split()}
# Sentences without a label, for countries whose script or format shows what the number is.
BARE = {
    "JP": "山田商店（東京都）{} 営業中",
    "KR": "서울식당 {} 영업중",
    "CN": "北京饭店 {} 欢迎光临",
    "TW": "台北書店 {} 營業中",
    "RU": "Магазин «Ромашка», {}, ежедневно",
    "UA": "Крамниця «Мрія», {}, щодня",
    "IL": "חנות הספרים {} פתוח",
    "TH": "ร้านอาหารกรุงเทพ {} เปิดทุกวัน",
    "EG": "مكتبة القاهرة {} مفتوح",
    "FR": "Cabinet Exemple {} sur rendez-vous",
    "US": "The shop ({}) is open.",
}
DIGITS = {"EG": "٠١٢٣٤٥٦٧٨٩", "SA": "٠١٢٣٤٥٦٧٨٩", "IR": "۰۱۲۳۴۵۶۷۸۹", "IN": "०१२३४५६७८९", "JP": "０１２３４５６７８９"}
_TYPES = (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE)
# The label of a scheme as it is written; the first alternative of its expression for the others.
_ID_LABELS = {
    "ES": "DNI", "PT": "NIF", "FR": "N° de sécurité sociale", "DE": "Steuer-ID", "NL": "BSN",
    "BE": "Rijksregisternummer",
    "SE": "Personnummer", "NO": "Fødselsnummer", "DK": "CPR-nr.", "FI": "Henkilötunnus", "PL": "PESEL",
    "CZ SK": "Rodné číslo",
    "RO": "CNP", "BG": "ЕГН", "GR": "ΑΜΚΑ", "HU": "TAJ szám", "HR": "OIB", "CH": "AHV-Nr.", "AT": "SVNR",
    "IE": "PPS number",
    "GB": "NHS number", "TR": "T.C. Kimlik No", "RU BY KZ": "ИНН", "RU": "СНИЛС", "UA": "РНОКПП", "BR": "CPF",
    "CL": "RUT",
    "AR": "CUIL", "IT": "Codice fiscale", "MX": "CURP", "CN": "身份证号", "TW": "身分證字號", "HK": "身份證號碼",
    "KR": "주민등록번호",
    "JP": "マイナンバー", "IN": "Aadhaar", "SG": "NRIC", "MY": "MyKad", "TH": "เลขประจำตัวประชาชน", "ID": "NIK",
    "ZA": "ID number",
    "IL": "תעודת זהות", "SA": "رقم الهوية", "AE": "Emirates ID", "IR": "کد ملی", "PK": "CNIC", "AU": "TFN",
    "CA": "SIN no.",
}  # fmt: skip
NEGATIVES = (
    "Order no. {8}, shipped on 12.04.2024.", "Bestellnummer {10}", "Commande n° {9} du 03/05/2023",
    "Pedido {8} del 2024-05-01",
    "注文番号：{10}", "订单号：{11}，已发货。", "訂單編號 {10}", "QQ：{9}", "价格：{4}-{4}元",
    "2023-01-15至2024-12-31", "電話での受付は 9:00-18:00",
    "주문번호 {10}", "사업자등록번호 {3}-{2}-{5}", "ИНН {10}, КПП {9}", "Заказ № {8} от 12.05.2023", "ОГРН {13}",
    "р/с {20}",
    "Цена 12 500 000 руб., скидка 1 200 000", "ח.פ. {9}", "הזמנה מספר {8}", "رقم الطلب {9}", "رقم الحساب {12}",
    "خبر ۱۴۰۲/۰۵/۱۲ ساعت ۱۲:۳۰",
    "เลขที่บัญชี {3}-{1}-{5}-{1}", "mã số thuế {10}", "Vergi No: {10}", "NIP {3}-{3}-{2}-{2}",
    "Konto {2} {4} {4} {4}", "REGON {9}",
    "खाता संख्या {11}", "ISBN 978-{1}-{4}-{4}-{1}", "Tel.: Mo - Fr 9.00 - 13.00", "Sezon 2019-2020, 2021 2022 2023",
    "第{3}号文件，共{4}页", "从2010年到2020年，人口从 1234567 增至 1456789。", "東京マラソン2019 2020 2021 2022",
    "{4} {4} {4} {4} {4}",
    "В 1941–1945 годах, 22.06.1941-09.05.1945", "ул. Ленина переименована в 1991 году", "1000 2000 3000 4000 5000",
    "百度第 {3} 号",
)  # fmt: skip
ADDRESSES = {
    "BR": ("Rua das Acácias, 123 - Centro, São Paulo - SP, 01234-567",
    "Av. Exemplo, 1578, Bela Vista, Recife/PE, CEP 50010-200"),
    "PT": ("Rua do Exemplo 25, 1100-048 Lisboa", "Avenida da Amostra, 7 - 2.º Dto, 4000-123 Porto"),
    "PL": ("ul. Przykładowa 12/4, 00-001 Warszawa", "al. Wzorowa 7, 31-123 Kraków"),
    "IN": ("12, Sample Road, Bengaluru 560001", "Plot No. 45, Sector 18, Gurugram - 122 015",
    "45 उदाहरण मार्ग, नई दिल्ली - 110001"),
    "MX": ("Av. Ejemplo Sur 1602, Col. Muestra, C.P. 03940", "Calle Modelo 12, Centro, C.P. 44100"),
    "ID": ("Jl. Contoh Raya No. 5, Jakarta 10210", "Jalan Misal 12, Bandung 40111"),
    "TR": ("Örnek Mah. Deneme Cad. No: 5 Kadıköy 34710 İstanbul",),
    "CN": ("北京市朝阳区示例路88号", "浙江省杭州市西湖区样本街90号3楼", "上海市浦东新区模范大道1200弄5号"),
    "TW": ("台北市信義區範例路五段7號", "高雄市前鎮區樣品街12號3樓"),
    "JP": ("〒150-0002 東京都渋谷区見本2-21-1", "大阪府大阪市北区例田1丁目2番3号", "愛知県名古屋市中区見本町5-6"),
    "KR": ("서울특별시 강남구 보기로 152", "경기도 성남시 분당구 예시로 166", "부산광역시 해운대구 견본로12번길 34"),
    "RU": ("123456, г. Москва, ул. Примерная, д. 5, кв. 12", "г. Казань, просп. Образцовый, д. 10",
    "101000, Москва, Примерный пер., д. 3"),
    "UA": ("01001, м. Київ, вул. Зразкова, 22", "вул. Прикладна, буд. 5, м. Львів"),
    "SA": ("شارع المثال، الرياض 12345", "طريق النموذج، حي العليا، جدة 23456"),
    "IR": ("خیابان نمونه، کوچه مثال، پلاک 12",),
}  # fmt: skip
_AROUND = ("{}", "Office: {}.", "地址：{}。", "Адрес: {}", "({})", "→ {}\nwww.example.com")


def phones(rng: random.Random) -> Iterator[Case]:
    """Yields numbers of every country with a label, without one, and with other digits."""
    for country in COUNTRIES:
        for kind in _TYPES:
            number = _number(rng, country, kind)
            if number is None:
                continue
            printed = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
            abroad = phonenumbers.format_number(number, PhoneNumberFormat.INTERNATIONAL)
            for value, form in ((printed, "national"), (abroad, "international")):
                yield Case(rng.choice(LABELS[country]).format(value), value, f"{form}_{country}")
            if (country in BARE and re.match(r"\(?0|8 |\([2-9]", printed)) or (country == "CN" and kind == _TYPES[1]):
                yield Case(BARE.get(country, BARE["CN"]).format(printed), printed, f"bare_{country}")
            if country in DIGITS:
                value = printed.translate(str.maketrans("0123456789", DIGITS[country]))
                yield Case(rng.choice(LABELS[country]).format(value), value, f"digits_{country}")


def _number(rng: random.Random, country: str, kind: int) -> phonenumbers.PhoneNumber | None:
    """Returns a number of the country with other last digits than the example; None if it has no example."""
    example = phonenumbers.example_number_for_type(country, kind)
    if example is None:
        return None
    digits = phonenumbers.national_significant_number(example)
    for _ in range(30):
        drawn = phonenumbers.parse(f"+{example.country_code}{digits[:-4]}{rng.randrange(10_000):04d}", None)
        if phonenumbers.is_valid_number(drawn):
            return drawn
    return example


def ids(rng: random.Random) -> Iterator[tuple[Case, Case | None]]:
    """Yields for every scheme a valid number with its label, and the same with a wrong digit if it has a check."""
    for scheme in SCHEMES:
        label = _ID_LABELS[scheme.countries]
        valid, wrong = _identity(rng, scheme)
        country = scheme.countries.split()[0]
        # Korea's have had no check digit since 2020.
        negative = Case(f"{label}: {wrong}", "", f"wrong_{country}") if wrong and country != "KR" else None
        yield Case(f"{label}: {valid}", valid, f"id_{country}"), negative


def _identity(rng: random.Random, scheme: Scheme) -> tuple[str, str]:
    """Returns a valid number of the form, and one with another last character ("" without a check digit)."""
    for _ in range(200_000):
        number = printed(rng, scheme.form)
        if has_valid_digits(scheme, number):
            break
    last = max(at for at, mark in enumerate(number) if mark.isalnum())
    other = str((int(number[last]) + 5) % 10) if number[last].isdigit() else "ABCDEFGHJKLMN"[ord(number[last]) % 13]
    wrong = number[:last] + other + number[last + 1 :]
    return number, "" if has_valid_digits(scheme, wrong) else wrong


def printed(rng: random.Random, form: str) -> str:
    """Returns a random string that the expression of a scheme matches: classes, counts, groups, optional parts."""
    tree = re._parser.parse(form)  # type: ignore[attr-defined]
    return _drawn(rng, tree)


def _drawn(rng: random.Random, tree: Any) -> str:
    made = ""
    for operator, value in tree:
        name = str(operator)
        if name == "LITERAL":
            made += chr(value)
        elif name == "IN":
            made += rng.choice([mark for part in value for mark in _marks(part)])
        elif name == "MAX_REPEAT":
            made += "".join(_drawn(rng, value[2]) for _ in range(rng.randint(value[0], value[1])))
        elif name == "SUBPATTERN":
            made += _drawn(rng, value[3])
        elif name == "BRANCH":
            made += _drawn(rng, rng.choice(value[1]))
    return made


def _marks(part: tuple[Any, Any]) -> list[str]:
    name, value = str(part[0]), part[1]
    return [chr(code) for code in range(value[0], value[1] + 1)] if name == "RANGE" else [chr(value)]


def addresses(rng: random.Random) -> Iterator[Case]:
    """Yields every address in a frame."""
    for country, values in ADDRESSES.items():
        for value in values:
            yield Case(rng.choice(_AROUND).format(value), value, f"address_{country}")


def negatives(rng: random.Random) -> Iterator[Case]:
    """Yields texts without personal data."""
    for frame in NEGATIVES:
        text = re.sub(r"\{(\d+)\}", lambda found: "".join(rng.choice("123456789") for _ in range(int(found[1]))), frame)
        yield Case(text, "", "negative")


def score(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Returns by topic without its country: cases, found whole, found at all; of negatives those with any match."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        topic = case.topic.partition("_")[0]
        found = [case.text[span.start : span.end] for span in find(case.text)]
        counts[topic].update(
            cases=1, exact=case.value in found, whole=any(case.value in part for part in found), any=bool(found)
        )
    return {
        topic: {
            "cases": count["cases"],
            **{key: round(count[key] / count["cases"], 4) for key in ("exact", "whole", "any")},
        }
        for topic, count in sorted(counts.items())
    }


def missed(cases: Sequence[Case]) -> dict[str, float]:
    """Returns the share of exact matches of topics and countries below 1."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        if case.value:
            found = [case.text[span.start : span.end] for span in find(case.text)]
            counts[case.topic].update(cases=1, exact=case.value in found)
    shares = {topic: round(count["exact"] / count["cases"], 3) for topic, count in sorted(counts.items())}
    return {topic: share for topic, share in shares.items() if share < 1}


def drawn(rounds: int, seed: int = 1) -> list[Case]:
    """Returns `rounds` rounds of all generated cases."""
    rng = random.Random(seed)
    made: list[Case] = []
    for _ in range(rounds):
        made += phones(rng)
        made += [case for pair in ids(rng) for case in pair if case]
        made += addresses(rng)
        made += negatives(rng)
    return made


def real(name: str, texts: Sequence[str], shown: int) -> dict[str, int]:
    """Returns the matches of texts by kind, and prints some with their evidence."""
    finds = [(text, span) for text in texts for span in find(text)]
    for kind in sorted({span.kind for _, span in finds}):
        of_kind = [(text, span) for text, span in finds if span.kind == kind]
        for text, span in random.Random(1).sample(of_kind, min(shown, len(of_kind))):
            print(f"{name} {kind} {span.evidence.name.lower()}: {text[max(0, span.start - 30) : span.end + 12]!r}")
    characters = sum(map(len, texts))
    return {"texts": len(texts), "characters": characters, **Counter(span.kind for _, span in finds)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--kinds", type=Path, help="folder with pages.jsonl.zst")
    options.add_argument("--texts", type=Path, nargs="*", default=[])
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--shown", type=int, default=0)
    given = options.parse_args()
    cases = drawn(given.rounds)
    result: dict[str, Any] = {"cases": len(cases), "generated": score(cases), "missed": missed(cases), "pages": {}}
    by_language: dict[str, list[str]] = defaultdict(list)
    for row in json_lines(given.kinds / "pages.jsonl.zst") if given.kinds else ():
        if isinstance(row.get("gold"), str):
            by_language[row["lang"]].append(clean(row["gold"]))
    for language, texts in sorted(by_language.items()):
        result["pages"][language] = real(language, texts, given.shown)
    for path in given.texts:
        result["pages"][path.name.partition(".")[0]] = real(path.name, texts_of(path), given.shown)
    keep("pii_world", result)


if __name__ == "__main__":
    main()
