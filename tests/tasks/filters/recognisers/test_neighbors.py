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
    ("東京都大田区で10-20代の若者", []),
    ("大阪府堺市の2-3年生", []),
    ("北海道札幌市で2-1の勝利", []),
    ("東京都渋谷区見本2-21-1で開催", ["東京都渋谷区見本2-21-1"]),
    ("大阪府堺市堺区例町2-3 日本ビル", ["大阪府堺市堺区例町2-3 日本ビル"]),
    ("北海道札幌市中央区北一条西2-3", ["北海道札幌市中央区北一条西2-3"]),
    ("서울 시민으로 3000명", []),
    ("부산 앞으로 10년", []),
    ("서울 버스로 10 분", []),
    ("서울 도로 1000km", []),
    ("서울 강남구 보기로 152 대한빌딩", ["서울 강남구 보기로 152"]),
    ("طريق الحرير كان طوله 12000 كيلومتر", []),
    ("شارع الرشيد في بغداد زاره نحو 25000 زائر", []),
    ("شارع الرشيد، بغداد، زاره نحو 25000 زائر", []),
    ("شارع الملك فهد الرياض 12345", ["شارع الملك فهد الرياض 12345"]),
    ("شارع المثال، الرياض 12345 السعودية", ["شارع المثال، الرياض 12345"]),
    ("Москва, ул. Горького 1905 года", []),
    ("Москва, ул. Горького 1905 г.", []),
    ("в г. Москва, ул. Горького 1905 году", []),
    ("Москва, ул. 1905 года, д. 5", ["Москва, ул. 1905 года, д. 5"]),
    ("ул. Примерная, 5, г. Казань", ["ул. Примерная, 5, г. Казань"]),
    ("北京市的道路1号工程和街道2号文件", []),
    ("上海市南京路3号线", []),
    ("上海市沿南京路3号口", []),
    ("他住的北京市朝阳区示例路88号楼", ["北京市朝阳区示例路88号"]),
    ("In Phase 3 of the trial - 200000 patients", []),
    ("Street Fighter 5 tournament - 500000 dollars", []),
    ("Sector 7 grew 5 per cent - 500000 jobs", []),
    ("12, Sample Road, Bengaluru - 560001 or by mail", ["12, Sample Road, Bengaluru - 560001"]),
    ("Jalan tol itu 12 km dengan 45000 kendaraan", []),
    ("Jalan cerita film 3 ditonton 25000 orang", []),
    ("Gang of 4 sold 12345", []),
    ("Jl. Contoh Raya No. 5, Jakarta 10210", ["Jl. Contoh Raya No. 5, Jakarta 10210"]),
    ("Rua Augusta 3 é um filme, 12345-678", []),
    ("Rua do Exemplo, 12, ap. 3, 01234-567", ["Rua do Exemplo, 12, ap. 3, 01234-567"]),
    ("ul. Sezam 5 to program, wynik 12-345 Punktów", []),
    ("ul. Przykładowa 12a, 00-001 Warszawa", ["ul. Przykładowa 12a, 00-001 Warszawa"]),
    ("№ 12 (345) 67-89", []),
    ("см. Т. 45 (812) 123-45", []),
    ("Магазин, (812) 123-45-67", ["(812) 123-45-67"]),
    ("总资产13812345678元，营业收入15912345678元", []),
    ("全程13812345678公里", []),
    ("王先生 13812345678 名片", ["13812345678"]),
    ("手机销量 12345678 台", []),
    ("电话：12345678 台北", ["12345678"]),
    ("電話の契約数は 123456789 件", []),
    ("Телефонов продано 12 345 678 штук", []),
    ("Телефон: 12 345 678, штук не менее", ["12 345 678"]),
    ("ขายโทรศัพท์มือถือได้ 12 345 678 เครื่อง", []),
    ("Đã bán điện thoại 12 345 678 chiếc", []),
    ("Điện thoại: 024 3825 1234 người nhận", ["024 3825 1234"]),
    ("UID number 234567890124", []),
    ("The Aadhaar system issued 2341 2341 2346 cards", []),
    ("Your Aadhaar card number is 2341 2341 2346", ["2341 2341 2346"]),
    ("My number one hit sold 1234 5678 9018 copies", []),
    ("My number: 1234 5678 9018", ["1234 5678 9018"]),
    ("Nik scored 3201014502900001", []),
    ("Nik 3201014502900001", []),
    ("NIK: 3201014502900001", ["3201014502900001"]),
    ("The BSN group sold 123456782 units", []),
    ("BSN-nummer: 123456782", ["123456782"]),
    ("My BSN number is 123456782", ["123456782"]),
]

CITATIONS = [
    ("DE", "Angew. Chem. 134 (30) 2222-2245", []),
    ("DE", "Büro (030) 2312-5123", ["(030) 2312-5123"]),
    ("GB", "Nature 45 (12) 1234-1240", []),
    ("GB", "Nature (1985) 123 456", []),
    ("GB", "Office (020) 7946 0958", ["(020) 7946 0958"]),
    ("BR", "Oficina (11) 2222-3333", ["(11) 2222-3333"]),
]


@pytest.mark.parametrize(("text", "expected"), NEIGHBORS)
def test_what_resembles_personal_data_is_left_and_its_neighbor_is_found(text: str, expected: list[str]) -> None:
    assert [text[span.start : span.end] for span in find(text)] == expected


@pytest.mark.parametrize(("country", "text", "expected"), CITATIONS)
def test_issue_and_pages_of_a_journal_are_no_telephone_number_on_pages_of_a_country(
    country: str, text: str, expected: list[str]
) -> None:
    assert [text[span.start : span.end] for span in find(text, hints=(country,))] == expected
