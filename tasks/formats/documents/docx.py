"""DOCX: the parts of a document that hold its text, in the form that mammoth reads (ECMA-376, WordprocessingML).

Reads the main document, its notes, styles and lists, and the core properties. Writes a new package of these parts,
small and without references to others. What mammoth does not know is changed before it reads them: formulas become TeX,
hidden and deleted text goes, text boxes become paragraphs behind the one that holds them, a drop cap joins its word,
and a style that is based on a heading is that heading.
"""

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lxml import etree

from tasks.formats.documents.omml import mathml_of_omml
from tasks.formats.documents.zip_package import PackageError, ZipPackage, member_path
from tasks.formats.web.mathml import tex_of_mathml

_OFF = frozenset(("0", "off", "false"))
_DELETED = ("del", "moveFrom")
# Pictures, and objects of other programs; their text is in text boxes only.
_DRAWN = ("drawing", "pict", "object", "AlternateContent")
_HEADING = re.compile(r"heading ([1-9])", re.I)
_HEX, _FIRST_ROW = re.compile("[0-9A-Fa-f]{1,8}"), 0x0020
_OUTLINE = frozenset("012345678")  # 9 is text
_MAX_BASES = 20
_MAX_LINE = 1_000
_PARTS = ("styles", "numbering", "footnotes", "endnotes")
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


@dataclass(frozen=True)
class Properties:
    """What a document states about itself; "" for what it does not.

    Its dates are those of the file, not of a publication.
    """

    title: str = ""
    author: str = ""
    language: str = ""


def prepare(package: ZipPackage) -> tuple[bytes, Properties]:
    """Returns a package that mammoth can read, and the properties of the document.

    Raises:
        PackageError: the package has no main document ("damaged"), or exceeds its limits.
    """
    main = _target(package, "", "officeDocument") or "word/document.xml"
    document = package.xml(main)
    if document is None or _name(document) != "document":
        raise PackageError("damaged")
    roots = {"document": document}
    for part in _PARTS:
        path = _target(package, main, part) or member_path(main, f"{part}.xml")
        if (root := package.xml(path)) is not None:
            roots[part] = root
    if "styles" in roots:
        _name_headings(roots["styles"])
    parts = [roots[part] for part in ("document", "footnotes", "endnotes") if part in roots]
    for kind in ("footnote", "endnote"):
        _remove_marks_without_notes(parts, roots.get(f"{kind}s"), kind)
    for part_root in parts:
        _simplify(part_root)
    return _written(roots), _properties(package)


def _target(package: ZipPackage, path: str, kind: str) -> str:
    """Returns the path of the part to which a part has a relation of a kind, "" for none."""
    folder, _, name = path.rpartition("/")
    root = package.xml(f"{folder}/_rels/{name}.rels".lstrip("/"))
    if root is not None:
        for relation in root.iter("{*}Relationship"):
            if relation.get("Type", "").endswith(f"/{kind}"):
                return member_path(path, relation.get("Target", ""))
    return ""


def _remove_marks_without_notes(parts: list[Any], notes: Any, kind: str) -> None:
    """Removes marks of notes of a kind that the document lacks, with which mammoth fails."""
    known = set() if notes is None else {_value(note, "id") for note in notes.iter(f"{{*}}{kind}")}
    for part in parts:
        for mark in list(part.iter(f"{{*}}{kind}Reference")):
            if _value(mark, "id") not in known:
                _remove(mark)


def _written(roots: dict[str, Any]) -> bytes:
    """Returns a package of some parts."""
    relations = [
        f'<Relationship Id="{part}" Type="{_RELATIONS}/{part}" Target="{part}.xml"/>'
        for part in roots
        if part in _PARTS
    ]
    main = f'<Relationship Id="main" Type="{_RELATIONS}/officeDocument" Target="word/document.xml"/>'
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as package:
        package.writestr("_rels/.rels", f'<Relationships xmlns="{_PACKAGE}">{main}</Relationships>')
        package.writestr(
            "word/_rels/document.xml.rels", f'<Relationships xmlns="{_PACKAGE}">{"".join(relations)}</Relationships>'
        )
        for part, root in roots.items():
            package.writestr(f"word/{part}.xml", etree.tostring(root, encoding="utf-8"))
    return content.getvalue()


def _properties(package: ZipPackage) -> Properties:
    root = package.xml(_target(package, "", "core-properties") or "docProps/core.xml")
    if root is None:
        return Properties()
    texts = {
        name: next((" ".join((element.text or "").split()) for element in root.iter("{*}" + name)), "")
        for name in ("title", "creator", "language")
    }
    return Properties(*(text[:_MAX_LINE] for text in texts.values()))


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _value(element: Any, name: str = "val") -> str:
    """Returns an attribute of the namespace of Word, such as `w:val`; "" if there is none."""
    return next((str(value) for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def _name_headings(styles: Any) -> None:
    """Gives a style that is based on a heading, or has a level of the outline, the name of the heading."""
    found = {}
    for style in styles.iter("{*}style"):
        kind = style.tag.replace("}style", "}type")
        style.set(kind, style.get(kind, "paragraph"))  # mammoth requires it, the standard does not
        key = next((value for key, value in style.attrib.items() if key.endswith("}styleId")), "")
        found[key] = {_name(child): child for child in style if isinstance(child.tag, str)}
    levels = {key: _level(key, found) for key in found}
    for key, level in levels.items():
        if level:
            name = found[key]["name"]
            for attribute in name.attrib:
                name.set(attribute, f"heading {min(level, 6)}")


def _level(key: str, styles: dict[str, dict[str, Any]]) -> int:
    """Returns the level of a heading, from 1 to 9; 0 for another style."""
    for _ in range(_MAX_BASES):
        style = styles.get(key, {})
        if "name" not in style:
            return 0
        if match := _HEADING.fullmatch(_value(style["name"])):
            return int(match[1])
        if "pPr" in style:
            for outline in style["pPr"].iter("{*}outlineLvl"):
                level = _value(outline)
                return int(level) + 1 if level in _OUTLINE else 0
        if "basedOn" not in style:
            return 0
        key = _value(style["basedOn"])
    return 0


def _simplify(root: Any) -> None:
    """Changes a part with text as described in the docstring of the module."""
    for name in _DELETED:
        for element in list(root.iter("{*}" + name)):
            if _name(element.getparent()) not in ("rPr", "trPr"):  # there it is a mark that mammoth knows
                _remove(element)
    _lift_text_boxes(root)
    _join_drop_caps(root)
    _mark_headers(root)
    _write_formulas(root)
    for mark in list(root.iter("{*}vanish")):
        properties = mark.getparent()
        run = properties.getparent() if _name(properties) == "rPr" else None
        if run is not None and _name(run) == "r" and _value(mark) not in _OFF:
            _remove(run)
    for link in root.iter("{*}hyperlink"):
        for key in [key for key in link.attrib if key.endswith("}id")]:
            del link.attrib[key]  # its target is in a part that is not copied


def _lift_text_boxes(root: Any) -> None:
    """Moves the content of text boxes behind the paragraphs around them, and removes all drawings."""
    for choice in list(root.iter("{*}AlternateContent")):
        branches = [child for child in choice if isinstance(child.tag, str)]
        boxed = next((one for one in branches if next(one.iter("{*}txbxContent"), None) is not None), None)
        kept = boxed if boxed is not None else branches[-1] if branches else None
        for branch in branches:
            if branch is not kept:
                choice.remove(branch)
        if boxed is None and kept is not None:
            _unwrap(choice, kept)
    for box in reversed(list(root.iter("{*}txbxContent"))):  # one inside another first
        around = next(box.iterancestors("{*}p"), None)
        if around is not None:
            for child in reversed(list(box)):
                around.addnext(child)
    for name in _DRAWN:
        for element in list(root.iter("{*}" + name)):
            _remove(element)


def _join_drop_caps(root: Any) -> None:
    """Moves a large first letter, which is a paragraph of its own, into the paragraph behind it."""
    for frame in reversed(list(root.iter("{*}framePr"))):  # many in a row would be moved many times
        letter = next(frame.iterancestors("{*}p"), None)
        is_cap = any(key.endswith("}dropCap") and value != "none" for key, value in frame.attrib.items())
        if letter is None or not is_cap or (following := letter.getnext()) is None or _name(following) != "p":
            continue
        at = int(len(following) > 0 and _name(following[0]) == "pPr")
        following[at:at] = [child for child in letter if _name(child) != "pPr"]
        _remove(letter)


def _mark_headers(root: Any) -> None:
    """Marks the first row of tables whose style gives it a format of its own; few authors mark it as their header."""
    for look in root.iter("{*}tblLook"):
        attributes = {key.rpartition("}")[2]: value for key, value in look.attrib.items()}
        table = next(look.iterancestors("{*}tbl"), None)
        if table is None or not _has_first_row(attributes) or next(table.iter("{*}tblHeader"), None) is not None:
            continue
        rows = [child for child in table if _name(child) == "tr"]
        if len(rows) < 2:
            continue
        space = rows[0].tag[: -len("tr")]
        properties = next((child for child in rows[0] if _name(child) == "trPr"), None)
        if properties is None:
            properties = etree.Element(f"{space}trPr")
            rows[0].insert(0, properties)
        etree.SubElement(properties, f"{space}tblHeader")


def _has_first_row(attributes: Mapping[str, str]) -> bool:
    """Returns whether `w:tblLook` gives the first row a format; files before 2010 have a hexadecimal number only."""
    if "firstRow" in attributes:
        return attributes["firstRow"] not in _OFF
    number = attributes.get("val", "")
    return bool(_HEX.fullmatch(number)) and bool(int(number, 16) & _FIRST_ROW)


def _unwrap(element: Any, inner: Any) -> None:
    """Replaces an element by the children of one inside it."""
    for child in list(inner):
        element.addprevious(child)
    _remove(element)


def _write_formulas(root: Any) -> None:
    """Replaces formulas by runs of text with their TeX; those on a line of their own are between $$."""
    written = None
    for formula in list(root.iter("{*}oMath")):
        parent = formula.getparent()
        is_displayed = _name(parent) == "oMathPara"
        anchor = parent if is_displayed else formula
        paragraph = next(formula.iterancestors("{*}p"), None)
        if paragraph is None:
            continue
        space = paragraph.tag[: -len("p")]
        run = etree.Element(f"{space}r")
        text = etree.SubElement(run, f"{space}t")
        if tex := tex_of_mathml(mathml_of_omml(formula)):
            text.text = f"$${tex}$$" if is_displayed else f"${tex}$"
            if written is not None and _is_beside(anchor.getprevious(), written):
                text.text = f" {text.text}"  # two formulas would be one between $$
                text.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
        anchor.addprevious(run)
        if is_displayed and formula.getnext() is not None:
            etree.SubElement(run, f"{space}br")
        if not is_displayed:
            _remove(formula)
        written = run
    for element in list(root.iter("{*}oMathPara")):
        _remove(element)


def _is_beside(before: Any, written: Any) -> bool:
    """Returns whether the element before a formula is the run of the last one, or was the place of displayed ones."""
    return before is written or (before is not None and _name(before) == "oMathPara")


def _remove(element: Any) -> None:
    """Removes an element; no text of the format is between elements."""
    if (parent := element.getparent()) is not None:
        parent.remove(element)
