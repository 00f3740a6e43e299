"""Contract of the parser `docx`: a document of Word as one document, with what its readers see."""

import importlib.util
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.core.config import Problems
from tasks.core.errors import InputError
from tasks.formats.documents.structure import Form
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.parser import Content, Rejected, find_parser, parse_body
from tasks.stages.extract.parsers.docx import Docx
from tests.tasks.stages.extract.test_stage import documents

Run = Callable[..., Artifact]
MAIN = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SPACES = " ".join(
    f'xmlns:{prefix}="{space}"'
    for prefix, space in {
        "w": W,
        "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
        "r": MAIN,
        "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
        "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
        "v": "urn:schemas-microsoft-com:vml",
    }.items()
)
STYLES = """
<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:type="paragraph" w:styleId="Kapitel"><w:name w:val="Kapitel"/><w:basedOn w:val="berschrift1"/></w:style>
<w:style w:type="paragraph" w:styleId="Abschnitt"><w:name w:val="Abschnitt"/>
<w:pPr><w:outlineLvl w:val="2"/></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="toc1"><w:name w:val="toc 1"/></w:style>
<w:style w:type="paragraph" w:styleId="Quote"><w:name w:val="Quote"/></w:style>
<w:style w:type="paragraph" w:styleId="Code"><w:name w:val="HTML Preformatted"/></w:style>
<w:style w:type="paragraph" w:styleId="Caption"><w:name w:val="caption"/></w:style>"""
NUMBERING = """
<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/></w:lvl>
<w:lvl w:ilvl="1"><w:numFmt w:val="decimal"/></w:lvl></w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>"""
CORE = """<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"
xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The harbor</dc:title><dc:creator>Eva Roth</dc:creator>
<dc:language>en-US</dc:language></cp:coreProperties>"""


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        pytest.importorskip("mammoth", reason="the extra `office` is not installed")


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def p(content: str, style: str = "", properties: str = "") -> str:
    content = content if content.startswith("<") else run(content)
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{style}{properties}</w:pPr>{content}</w:p>"


def item(text: str, level: int = 0) -> str:
    return p(text, properties=f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>')


def docx(body: str, **parts: str) -> bytes:
    content = io.BytesIO()
    members = {"styles": STYLES, "numbering": NUMBERING, **parts}
    relations = "".join(f'<Relationship Id="{name}" Type="{MAIN}/{name}" Target="{name}.xml"/>' for name in members)
    with zipfile.ZipFile(content, "w") as package:
        package.writestr("word/document.xml", f"<w:document {SPACES}><w:body>{body}</w:body></w:document>")
        package.writestr(
            "word/_rels/document.xml.rels",
            f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{relations}'
            "</Relationships>",
        )
        for name, xml in members.items():
            package.writestr(f"word/{name}.xml", f"<w:{name} {SPACES}>{xml}</w:{name}>")
        package.writestr("docProps/core.xml", CORE)
    return content.getvalue()


def read(data: bytes, form: Form = "plain", settings: str = "{}") -> Content:
    return parse_body("docx", settings, data, "a.docx", form)


def markdown(body: str, **parts: str) -> str:
    return read(docx(body, **parts), "markdown").text


def reason(data: bytes, settings: str = "{}") -> str:
    with pytest.raises(Rejected) as rejected:
        read(data, settings=settings)
    return rejected.value.reason


def test_a_style_is_the_heading_that_it_is_based_on_or_has_the_level_of() -> None:
    body = p("One", "berschrift1") + p("Two", "Kapitel") + p("Three", "Abschnitt") + p("text")
    assert markdown(body) == "# One\n\n# Two\n\n### Three\n\ntext"


def test_lists_quotes_code_and_captions_keep_their_kind_and_a_table_of_contents_goes() -> None:
    body = p("One\t4", "toc1") + item("bread") + item("rye", 1) + p("said", "Quote") + p("a = 1", "Code")
    body += p("b = 2", "Code") + p("Table 1", "Caption")
    assert markdown(body) == "- bread\n  1. rye\n\n> said\n\n```\na = 1\nb = 2\n```\n\nTable 1"


def test_the_first_row_is_the_header_of_a_table_whose_style_shows_it() -> None:
    def table(look: str) -> str:
        rows = [f"<w:tr>{''.join(f'<w:tc>{p(cell)}</w:tc>' for cell in row)}</w:tr>" for row in ("ab", "12", "34")]
        return f"<w:tbl><w:tblPr><w:tblLook {look}/></w:tblPr>{''.join(rows)}</w:tbl>"

    headed = "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"
    assert markdown(table('w:firstRow="1"')) == markdown(table('w:val="04A0"')) == headed
    assert markdown(table('w:val="0480"')).startswith("|  |  |\n| --- | --- |\n| a | b |")


def test_insertions_are_text_and_deletions_moves_hidden_runs_and_comments_are_not() -> None:
    seen = run("shown", '<w:vanish w:val="0"/>')
    body = p(
        f"{run('The ')}<w:ins>{run('new ')}</w:ins><w:del><w:r><w:delText>old </w:delText></w:r></w:del>"
        f"<w:moveFrom>{run('moved ')}</w:moveFrom>{run('secret ', '<w:vanish/>')}"
        f"{seen}<w:r><w:commentReference w:id='1'/></w:r>"
    )
    assert markdown(body, comments="<w:comment w:id='1'><w:p><w:r><w:t>why</w:t></w:r></w:p></w:comment>") == (
        "The new shown"
    )


def test_notes_stand_at_the_end_under_the_numbers_of_the_text() -> None:
    body = p(
        f"{run('Here')}<w:r><w:footnoteReference w:id='7'/></w:r>{run(' and')}<w:r><w:endnoteReference w:id='3'/></w:r>"
    )
    notes = {
        "footnotes": f"<w:footnote w:id='7'>{p('the first')}</w:footnote>",
        "endnotes": f"<w:endnote w:id='3'>{p('the second')}</w:endnote>",
    }
    assert markdown(body + p("next"), **notes) == "Here[1] and[2]\n\nnext\n\n[1] the first\n\n[2] the second"


def test_a_mark_without_its_note_goes() -> None:
    assert (
        markdown(p(f"{run('Here')}<w:r><w:footnoteReference w:id='9'/></w:r>{run(' and there.')}")) == "Here and there."
    )


def test_a_text_box_is_read_once_behind_its_paragraph() -> None:
    box = f"<w:txbxContent>{p('in the box')}</w:txbxContent>"
    drawn = (
        f'<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wps:txbx>{box}</wps:txbx></w:drawing>'
        f"</mc:Choice><mc:Fallback><w:pict><v:textbox>{box}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )
    assert markdown(p(f"{run('before')}{drawn}{run(' and after')}") + p("next")) == (
        "before and after\n\nin the box\n\nnext"
    )


def test_a_drop_cap_joins_its_word() -> None:
    assert markdown(p("O", properties='<w:framePr w:dropCap="drop" w:lines="3"/>') + p("nce there was")) == (
        "Once there was"
    )


def m(name: str, **arguments: str) -> str:
    return f"<m:{name}>{''.join(f'<m:{key}>{value}</m:{key}>' for key, value in arguments.items())}</m:{name}>"


def x(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


def named(text: str) -> str:
    return f'<m:r><m:rPr><m:sty m:val="p"/></m:rPr><m:t>{text}</m:t></m:r>'


FORMULAS = {
    m("f", num=x("1"), den=x("2n")): r"\frac{1}{2n}",
    m("rad", deg=x("3"), e=x("x")): r"\sqrt[3]{x}",
    m("rad", radPr='<m:degHide m:val="1"/>', deg="", e=x("x")): r"\sqrt{x}",
    m("sSubSup", e=x("x"), sub=x("i"), sup=x("2")): "x_i^2",
    m("nary", naryPr='<m:chr m:val="∑"/>', sub=x("i=1"), sup=x("n"), e=x("i")): r"\sum_{i=1}^ni",
    m("nary", naryPr='<m:supHide m:val="1"/>', sub=x("D"), sup="", e=x("f")): r"\int_Df",
    m("func", fName=named("sin"), e=x("α")): r"\sin\alpha",
    m("func", fName=m("limLow", e=named("max"), lim=x("k")), e=x("k")): r"\max_kk",
    m("d", dPr='<m:begChr m:val="{"/><m:endChr m:val=""/>', e=m("eqArr", e=x("a"))): r"\begin{cases} a \end{cases}",
    m("d", dPr='<m:begChr m:val="["/><m:endChr m:val="]"/>', e=m("m", mr=f"<m:e>{x('a')}</m:e><m:e>{x('b')}</m:e>")): (
        r"\begin{bmatrix} a & b \end{bmatrix}"
    ),
    m("acc", accPr='<m:chr m:val="&#x20d7;"/>', e=x("v")): r"\vec{v}",
    m("bar", barPr='<m:pos m:val="top"/>', e=x("z")): r"\bar{z}",
}


@pytest.mark.parametrize(("tex", "formula"), [(tex, formula) for formula, tex in FORMULAS.items()])
def test_formulas_are_tex(tex: str, formula: str) -> None:
    assert markdown(p(f"{run('so ')}<m:oMath>{formula}</m:oMath>{run('.')}")) == f"so ${tex}$."


def test_a_formula_on_its_own_line_is_displayed_and_two_in_a_row_stay_two() -> None:
    displayed = f"<m:oMathPara><m:oMath>{x('a=b')}</m:oMath></m:oMathPara>"
    assert markdown(p(displayed * 2)) == "$$a=b$$ $$a=b$$"
    body = p(displayed)
    assert markdown(p("so") + body + p("then")) == "so\n\n$$a=b$$\n\nthen"
    assert markdown(p(f"<m:oMath>{x('a')}</m:oMath><m:oMath>{x('b')}</m:oMath>")) == "$a$ $b$"


def test_title_author_and_language_are_those_of_the_core_properties() -> None:
    document = read(docx(p("One", "berschrift1")))
    assert (document.title, document.author, document.language_hint) == ("The harbor", "Eva Roth", "en-US")


def test_documents_that_cannot_be_read_have_reasons() -> None:
    data = docx(p("text"))
    assert reason(b"\xd0\xcf\x11\xe0" + bytes(600) + "EncryptedPackage".encode("utf-16-le")) == "docx_encrypted"
    assert reason(data[: len(data) // 2]) == "docx_damaged"
    assert reason(docx("").replace(b"word/document.xml", b"word/document.xmm")) == "docx_damaged"
    assert reason(data, '{"max_unpacked_bytes": 500}') == "docx_too_large"
    assert reason(docx("")) == "empty"


def test_long_tables_are_cut_with_the_note_of_pages(run_stage: Run, tmp_path: Path) -> None:
    rows = [f"<w:tr>{''.join(f'<w:tc>{p(str(cell))}</w:tc>' for cell in (n, n * n))}</w:tr>" for n in range(9)]
    (tmp_path / "harbor.docx").write_bytes(docx(f"<w:tbl>{''.join(rows)}</w:tbl>"))
    source = {"name": "letters", "kind": "docx", "path": f"{tmp_path}/*.docx"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "max_table_rows": 3})
    (document,) = documents(run_stage("tasks.stages.extract.stage", config))
    assert document["text"] == "0\t0\n1\t1\n2\t4\n(6 more rows)"


def test_a_folder_of_documents_is_a_source(run_stage: Run, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx(p("One", "berschrift1") + p("We left the harbor.")))
    source = {"name": "office", "kind": "docx", "path": f"{tmp_path}/*.docx"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "text": "markdown"})
    (document,) = documents(run_stage("tasks.stages.extract.stage", config))
    assert (document["text"], document["url"]) == ("# One\n\nWe left the harbor.", "file://office/a.docx")


@pytest.mark.parametrize("kind", [*Docx.media_types, "application/octet-stream", "application/zip"])
def test_a_captured_document_is_read_whatever_its_server_calls_it(
    kind: str, run_stage: Run, tmp_path: Path, warc: Callable[..., bytes]
) -> None:
    capture = warc("http://a.example/a.docx", body=docx(p(run("We left."))), http=f"Content-Type: {kind}\r\n")
    (tmp_path / "captures.warc.gz").write_bytes(capture)
    source = {"name": "captures", "kind": "warc", "path": f"{tmp_path}/*.warc.gz"}
    config = ExtractConfig.model_validate({"files": (source,), "min_chars": 1, "parsers": {"docx": {}}})
    (document,) = documents(run_stage("tasks.stages.extract.stage", config))
    assert document["text"] == "We left."


def test_a_recipe_and_a_worker_without_the_library_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mammoth" else found(name))
    with pytest.raises(Problems, match=r"\"docx\" needs mammoth: .*sluice\[office\]"):
        find_parser("docx", {})
    with pytest.raises(InputError, match=r"sluice\[office\]"):
        Docx().check_installed()
