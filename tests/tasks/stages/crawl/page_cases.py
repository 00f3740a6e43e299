"""Bodies of every kind, from a seed, for fuzzing the page parser. Not a test module.

`drawn` composes bodies from fragments of markup: SVG, MathML, foreign attributes, references, raw text, feeds,
sitemaps. `mutated` damages a page. Both depend only on their random generator.
"""

import gzip
import random
import re
import zlib
from collections.abc import Sequence
from html.entities import html5
from pathlib import Path

import brotli

from tasks.stages.crawl.http.client import Response

ELEMENTS = (
    *("a", "abbr", "address", "applet", "area", "article", "aside", "audio", "b", "base", "basefont", "bgsound", "big"),
    *("blockquote", "body", "br", "button", "canvas", "caption", "center", "code", "col", "colgroup", "dd", "details"),
    *(
        "dialog",
        "dir",
        "div",
        "dl",
        "dt",
        "em",
        "embed",
        "fieldset",
        "figure",
        "font",
        "form",
        "frame",
        "frameset",
        "h1",
    ),
    *(
        "head",
        "hgroup",
        "hr",
        "html",
        "i",
        "iframe",
        "image",
        "img",
        "input",
        "isindex",
        "keygen",
        "li",
        "link",
        "main",
    ),
    *("marquee", "math", "menu", "meta", "meter", "nav", "nobr", "noembed", "noframes", "noscript", "object", "ol"),
    *("optgroup", "option", "p", "param", "plaintext", "pre", "q", "rb", "rp", "rt", "rtc", "ruby", "s", "script"),
    *("section", "select", "selectedcontent", "small", "source", "span", "strike", "strong", "style", "sub", "summary"),
    *("svg", "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "time", "title", "tr", "track"),
    *("tt", "u", "ul", "var", "video", "wbr", "xmp", "x-y", "z", "w", "foreignObject", "desc", "annotation-xml", "mi"),
    *("mtext", "mglyph", "malignmark", "linearGradient", "use", "feImage", "animate", "rss", "feed", "urlset"),
)
NAMES = (
    *("href", "xlink:href", "XLINK:HREF", "xml:base", "xml:lang", "xmlns", "xmlns:xlink", "definitionurl", "viewbox"),
    *("src", "rel", "type", "name", "content", "http-equiv", "charset", "id", "class", "style", "data-x", "property"),
    *("é", "=", '"', "'", "<", "\ud800", "a\0b", "x:y", ":", "on\x01", "content content"),
)
VALUES = (
    *("/a", "b/c?d=é&amp;f", "//h.example/x", "http://h.example/y#z", "?q", "#", "", " ", "javascript:x", "data:,x"),
    *("http://[", "http://h.example:99999/", "http://%zz/", "\\\\h\\x", "mailto:a@b", "http://u:p@h.example/"),
    *("noindex nofollow", "unavailable_after: 9999-12-31", "canonical", "alternate", "nofollow", "stylesheet"),
    *("application/rss+xml", "text/html; charset=koi8-r", "5; url=/r", "1", "robots", "sluice", "tdm-reservation"),
    *(
        "refresh",
        "utf-16",
        "content-type",
        "&#xD800;",
        "&NotEqualTilde;",
        "\ud800",
        "\0",
        "<b>",
        "<!--",
        "]]>",
        "x" * 5000,
    ),
)
REFERENCES = (
    *("&#0;", "&#x0;", "&#128;", "&#xD800;", "&#xDFFF;", "&#55296;", "&#xFFFE;", "&#x10FFFF;", "&#x110000;", "&#"),
    *("&#99999999999999999999;", "&#xFFFFFFFFFFFFFFFF;", "&#x;", "&;", "&", "&amp", "&ampx", "&x;", "&#38;#60;"),
)
OTHERS = (
    *("<!--", "-->", "--!>", "<!-->", "<![CDATA[", "]]>", "<?xml version='1.0' encoding='koi8-r'?>", "<?x", "?>", "</"),
    *("<!doctype html>", "<!DOCTYPE html PUBLIC 'x' 'y'>", "<!", "<", ">", "</ x>", "</>", "<a", "<a href='", '"', "'"),
    *("\0", "\x0b", "\x0c", "\x1b$B", "\ufeff", "\ufffe", "\ud800", "\U0010ffff", "é", "漢字", "שלום", "\u202e", "\r"),
    *(
        "<!DOCTYPE x [<!ENTITY e 'f'>]>",
        "&e;",
        "{",
        "}",
        "[",
        '"url": "/j",',
        '{"version": "https://jsonfeed.org/version/1"',
    ),
    *(
        "<loc>/s</loc>",
        "<item><link>/i</link>",
        "<guid>/g</guid>",
        "<entry>",
        "<lastmod>2026</lastmod>",
        "<sitemapindex>",
    ),
)
ENCODINGS = (
    *("utf-8", "utf-8", "utf-8", "utf-16", "utf-16-be", "utf-32", "cp1251", "koi8-r", "cp932", "euc_jp", "iso2022_jp"),
    *("gb18030", "big5", "euc_kr", "latin-1", "utf-7", "hz", "cp037"),
)
LABELS = (
    *("", "utf-8", "UTF-8", "utf8", "us-ascii", "utf-16", "utf-7", "koi8-r", "shift_jis", "gbk", "big5", "iso-2022-jp"),
    *("x-user-defined", "replacement", "base64", "idna", "rot13", "zlib", "no such", "utf-8\0", "é", "x" * 300),
)
TYPES = (
    *("text/html", "text/html", "text/html", "application/xhtml+xml", "application/xml", "text/xml", "text/plain", ""),
    *("application/rss+xml", "application/atom+xml", "application/feed+json", "application/gzip"),
)
CODINGS = (
    "",
    "",
    "",
    "",
    "gzip",
    "deflate",
    "br",
    "gzip, br",
    "none",
    "UTF-8",
    "identity",
    "zstd",
    "x" * 300,
    "gzip, , x",
)
ROBOTS = (
    "",
    "",
    "",
    "noindex",
    "otherbot: noindex",
    "nofollow;noai",
    "unavailable_after: 0001-01-01T00:00+23:59",
    ":,:",
)


def memory(field: str, process: int | str = "self") -> int:
    """A figure of a process in MB."""
    found = re.search(rf"{field}:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def reference(chance: random.Random) -> str:
    """A character reference: a named one of HTML's 2,231, a numeric one, or something like it."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(REFERENCES)
    if kind == 1:
        return "&" + chance.choice(list(html5))
    code = chance.choice((chance.randrange(0x110000), chance.randrange(0xD700, 0xE100), chance.randrange(256)))
    return f"&#{code};" if kind == 2 else f"&#x{code:X}{chance.choice((';', ''))}"


def tag(chance: random.Random) -> str:
    name = chance.choice(ELEMENTS)
    if chance.random() < 0.3:
        return f"</{name}>"
    held = []
    for _ in range(chance.choice((0, 0, 1, 2, 3, 8))):
        value = reference(chance) if chance.random() < 0.2 else chance.choice(VALUES)
        quote = chance.choice(('"', "'", ""))
        held.append(f"{chance.choice(NAMES)}={quote}{value}{quote}" if chance.random() < 0.9 else chance.choice(NAMES))
    return f"<{name if chance.random() < 0.9 else name.upper()} {' '.join(held)}{chance.choice(('>', '/>', '>', ''))}"


def drawn(chance: random.Random) -> bytes:
    """A body of random fragments."""
    pieces = []
    for _ in range(chance.choice((1, 5, 20, 60))):
        kind = chance.random()
        pieces.append(
            tag(chance) if kind < 0.6 else reference(chance) if kind < 0.8 else chance.choice((*OTHERS, "text "))
        )
        if chance.random() < 0.02:
            pieces.append(pieces[-1] * chance.choice((30, 300, 3000)))
    text = "".join(pieces)[:40_000]
    encoding = chance.choice(ENCODINGS)
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") and encoding != "utf-7" else "ignore")


def mutated(page: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A damaged page: bits, bytes and ranges changed, removed, duplicated, moved or inserted."""
    body = bytearray(page)
    for _ in range(chance.choice((1, 2, 5, 20))):
        at, length = chance.randrange(len(body) + 1), chance.choice((1, 4, 40, 400, 4000))
        kind = chance.randrange(7)
        if kind == 0 and at < len(body):
            body[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            body[at : at + length] = chance.randbytes(min(length, 40))
        elif kind == 2:
            del body[at : at + length]
        elif kind == 3:
            body[at:at] = body[at : at + length] * chance.choice((1, 3, 30))
        elif kind == 4:
            body[at:at] = drawn(chance)[:length]
        elif kind == 5:
            start = chance.randrange(len(body) + 1)
            body[at:at] = body[start : start + length]
        elif others:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            body[at:at] = other[start : start + length]
    if chance.random() < 0.1:
        del body[chance.randrange(len(body) + 1) :]
    return bytes(body)


def answer(body: bytes, chance: random.Random) -> Response:
    """A response with a body and random headers, correct and incorrect."""
    coding, mime, label = chance.choice(CODINGS), chance.choice(TYPES), chance.choice(LABELS)
    if chance.random() < 0.9:
        pack = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}.get(coding)
        body = pack(body) if pack else body
    headers = [("Content-Type", f"{mime}; charset={label}" if label else mime)] if mime or label else []
    headers += [("Content-Encoding", coding)] if coding else []
    headers += [("X-Robots-Tag", chance.choice(ROBOTS))]
    return Response(200, "OK", tuple(headers), body, "length" if chance.random() < 0.1 else "", "", b"", 0.0)
