"""Contract of the parser `epub`: the chapters of a book as one document, in reading order."""

import io
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.formats.documents.structure import Form
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.parser import Content, Rejected, parse_body
from tests.tasks.stages.extract.test_stage import documents

Run = Callable[..., Artifact]
CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
METADATA = """<dc:title>A winter at sea</dc:title><dc:creator>Eva Roth</dc:creator><dc:creator>Ole Berg</dc:creator>
<dc:language>en</dc:language><dc:date>1911-04-02</dc:date><dc:rights>Public domain</dc:rights>"""


def opf(metadata: str, items: str, spine: str, rest: str = "") -> str:
    return f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:opf="http://www.idpf.org/2007/opf">{metadata}</metadata>
<manifest>{items}</manifest><spine>{spine}</spine>{rest}</package>"""


def item(key: str, href: str, properties: str = "") -> str:
    return f'<item id="{key}" href="{href}" media-type="application/xhtml+xml" properties="{properties}"/>'


def chapter(text: str) -> str:
    return f'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>{text}</body></html>'


def epub(members: Mapping[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as package:
        for name, data in members.items():
            package.writestr(name, data)
    return content.getvalue()


BOOK: dict[str, str | bytes] = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/book.opf": opf(
        METADATA,
        item("nav", "nav.xhtml", "nav") + item("two", "text/the%20end.xhtml") + item("one", "text/one.xhtml"),
        '<itemref idref="nav"/><itemref idref="one"/><itemref idref="two"/>',
    ),
    "OEBPS/nav.xhtml": chapter("<h1>Contents</h1>"),
    "OEBPS/text/one.xhtml": chapter("<h1>One</h1><p>We left<br/>the <i>harbor</i>.</p><ul><li>bread</li></ul>"),
    "OEBPS/text/the end.xhtml": chapter("<h1>Two</h1><p>We came back.</p>"),
}


def read(data: bytes, form: Form = "plain", settings: str = "{}") -> Content:
    return parse_body("epub", settings, data, "a.epub", form)


def reason(data: bytes, settings: str = "{}") -> str:
    with pytest.raises(Rejected) as rejected:
        read(data, settings=settings)
    return rejected.value.reason


def test_chapters_stand_in_the_order_of_the_spine_and_keep_their_structure() -> None:
    text = read(epub(BOOK), "markdown").text
    assert text == "# One\n\nWe left\nthe harbor.\n\n- bread\n\n# Two\n\nWe came back."


def test_the_package_document_states_title_authors_language_date_and_rights() -> None:
    book = read(epub(BOOK))
    assert (book.title, book.author, book.language_hint, book.licence) == (
        *("A winter at sea", "Eva Roth; Ole Berg", "en"),
        "Public domain",
    )
    assert book.published == datetime(1911, 4, 2, tzinfo=UTC)


def test_roles_and_kinds_of_titles_are_those_of_both_versions_of_epub() -> None:
    metadata = """<dc:title id="s">Subtitle</dc:title><dc:title id="m">Main</dc:title>
    <meta refines="#m" property="title-type">main</meta><dc:creator opf:role="ill">Ida Lund</dc:creator>
    <dc:creator id="c">Eva Roth</dc:creator><meta refines="#c" property="role">aut</meta>
    <dc:date opf:event="modification">2020-01-01</dc:date><dc:date opf:event="publication">1999-12-31</dc:date>"""
    package = opf(metadata, item("one", "text/one.xhtml"), '<itemref idref="one"/>')
    book = read(epub(BOOK | {"OEBPS/book.opf": package}))
    assert (book.title, book.author, str(book.published)[:10]) == ("Main", "Eva Roth", "1999-12-31")


def test_cover_and_chapters_outside_of_the_reading_order_are_left_out() -> None:
    package = opf(
        METADATA,
        item("cover", "nav.xhtml") + item("one", "text/one.xhtml") + item("two", "text/the%20end.xhtml"),
        '<itemref idref="cover"/><itemref idref="one" linear="no"/><itemref idref="two"/><itemref idref="two"/>',
        '<guide><reference type="cover" href="nav.xhtml"/></guide>',
    )
    assert read(epub(BOOK | {"OEBPS/book.opf": package})).text == "Two\n\nWe came back."


def test_a_book_without_mimetype_container_and_spine_is_read_in_the_order_of_its_manifest() -> None:
    members = {name: data for name, data in BOOK.items() if name.startswith("OEBPS/text")}
    package = opf(METADATA, item("two", "text/the%20end.xhtml") + item("one", "text/one.xhtml"), "")
    assert read(epub({"OEBPS/book.opf": package, **members})).text.startswith("Two\n\nWe came back.\n\nOne")


def test_a_chapter_may_be_utf_16_or_no_well_formed_xml() -> None:
    wide = chapter("<p>Grüße vom Meer.</p>").replace("1.0", '1.0" encoding="utf-16', 1).encode("utf-16")
    broken = "<html><body><p>Open &nbsp; <b>end<p>Next"
    text = read(epub(BOOK | {"OEBPS/text/one.xhtml": wide, "OEBPS/text/the end.xhtml": broken})).text
    assert text == "Grüße vom Meer.\n\nOpen end\n\nNext"


def test_menus_and_page_numbers_of_the_printed_book_are_no_text() -> None:
    marked = '<div role="navigation"><p>Next page</p></div><p>The <span role="doc-pagebreak">12</span>ship left.</p>'
    text = read(epub(BOOK | {"OEBPS/text/one.xhtml": chapter(marked)})).text
    assert text == "The ship left.\n\nTwo\n\nWe came back."


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("http://www.idpf.org/2008/embedding", ""), ("http://www.w3.org/2001/04/xmlenc#aes128-cbc", "epub_encrypted")],
)
def test_encrypted_fonts_are_ignored_and_encrypted_text_is_a_reason(algorithm: str, expected: str) -> None:
    encryption = f"""<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
    <EncryptedData xmlns="http://www.w3.org/2001/04/xmlenc#"><EncryptionMethod Algorithm="{algorithm}"/>
    </EncryptedData></encryption>"""
    data = epub(BOOK | {"META-INF/encryption.xml": encryption})
    assert (reason(data) if expected else "") == expected
    assert expected or read(data).text


def test_books_that_cannot_be_read_have_reasons() -> None:
    whole = epub(BOOK)
    assert reason(whole[: len(whole) // 2]) == "epub_damaged"
    assert reason(epub({"META-INF/container.xml": CONTAINER})) == "epub_damaged"
    assert reason(whole, '{"max_unpacked_bytes": 900}') == "epub_too_large"
    assert reason(whole, '{"max_members": 3}') == "epub_too_large"
    assert reason(epub(BOOK | {"OEBPS/text/one.xhtml": "", "OEBPS/text/the end.xhtml": chapter("")})) == "empty"


def test_a_chapter_with_more_blocks_than_a_page_may_have_keeps_its_text() -> None:
    long = chapter("".join(f"<p>line {number}</p>" for number in range(21_000)))
    text = read(epub(BOOK | {"OEBPS/text/one.xhtml": long})).text
    assert text.startswith("line 0\n\nline 1\n\n")
    assert "line 20999\n\nTwo" in text


def test_a_folder_of_books_is_a_source(run_stage: Run, tmp_path: Path) -> None:
    (tmp_path / "sea.epub").write_bytes(epub(BOOK))
    source = {"name": "books", "kind": "epub", "path": f"{tmp_path}/*.epub"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "text": "markdown"})
    (document,) = documents(run_stage("tasks.stages.extract.stage", config))
    assert (document["url"], document["title"], document["form"], document["licence"]) == (
        *("file://books/sea.epub", "A winter at sea", "markdown"),
        "Public domain",
    )


def test_long_tables_of_files_and_of_captures_are_cut_with_the_note_of_pages(
    run_stage: Run, tmp_path: Path, warc: Callable[..., bytes]
) -> None:
    squares = "".join(f"<tr><td>{n}</td><td>{n * n}</td></tr>" for n in range(9))
    table = f"<table><tr><th>n</th><th>n²</th></tr>{squares}</table>"
    book = epub(BOOK | {"OEBPS/text/one.xhtml": chapter(table)})
    (tmp_path / "sea.epub").write_bytes(book)
    capture = warc("http://a.example/sea.epub", body=book, http="Content-Type: application/epub+zip\r\n")
    (tmp_path / "captures.warc.gz").write_bytes(capture)
    endings = {"epub": "epub", "warc": "warc.gz"}
    sources = [{"name": kind, "kind": kind, "path": f"{tmp_path}/*.{ending}"} for kind, ending in endings.items()]
    config = ExtractConfig.model_validate({"files": sources, "min_chars": 1, "max_table_rows": 4})
    read = documents(run_stage("tasks.stages.extract.stage", config))
    assert [one["text"] for one in read] == ["n\tn²\n0\t0\n1\t1\n2\t4\n(6 more rows)\n\nTwo\n\nWe came back."] * 2


@pytest.mark.parametrize("kind", ["application/epub+zip", "application/octet-stream", "application/zip"])
def test_a_captured_book_is_read_whatever_its_server_calls_it(
    kind: str, run_stage: Run, tmp_path: Path, warc: Callable[..., bytes]
) -> None:
    capture = warc("http://a.example/sea.epub", body=epub(BOOK), http=f"Content-Type: {kind}\r\n")
    (tmp_path / "captures.warc.gz").write_bytes(capture)
    source = {"name": "captures", "kind": "warc", "path": f"{tmp_path}/*.warc.gz"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parsers": {"epub": {}}})
    (document,) = documents(run_stage("tasks.stages.extract.stage", config))
    assert document["title"] == "A winter at sea"
