"""XHTML pages are read as XML, and give HTML without any markup that an HTML parser would misread."""

import time

import pytest

from tasks.formats.web.xhtml import html_of_xhtml

SPACE = "http://www.w3.org/1999/xhtml"


def body_of(inside, head="<title>T</title>"):
    """Returns the body that becomes of a page."""
    page = (
        f'<?xml version="1.0" encoding="utf-16"?><html xmlns="{SPACE}"><head>{head}</head><body>{inside}</body></html>'
    )
    converted = html_of_xhtml(page.encode())
    return converted and converted.decode().partition("<body>")[2].removesuffix("</body></html>")


@pytest.mark.parametrize(
    ("xhtml", "html"),
    [
        (
            '<p/>a<script src="a.js"/>b<iframe src="/f"/>c<br/><br></br>',
            '<p></p>a<script src="a.js"></script>b<iframe src="/f"></iframe>c<br><br>',
        ),
        ("<![CDATA[a < b & <p>]]>", "a &lt; b &amp; &lt;p&gt;"),
        ("&eacute;&nbsp;&lt;&#233;&#xe9;", "é\xa0&lt;éé"),
        ("<![CDATA[&eacute;]]>&AMP;", "&amp;eacute;&amp;"),
        ('<a href="?a=1&amp;b=&quot;&apos;&eacute;">x</a>', '<a href="?a=1&amp;b=&quot;&#x27;é">x</a>'),
        ('<p xml:lang="de" class="a" x:y="z" xmlns:x="urn:x">x</p>', '<p lang="de" class="a">x</p>'),
        ('<h:p xmlns:h="http://www.w3.org/1999/xhtml">x</h:p>', "<p>x</p>"),
        (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:l="http://www.w3.org/1999/xlink"><a l:href="/s"/></svg>',
            '<svg><a xlink:href="/s"></a></svg>',
        ),
        ("<script>if (a &lt; b) c()</script>", "<script>if (a < b) c()</script>"),
        ("<script><![CDATA[x = '</script><p>y']]></script>z", "<script></script>z"),
        (f"<script><![CDATA[{'x' * 8191}</script>]]></script>z", "<script></script>z"),
        ("<iframe><p>unseen</p></iframe><textarea>a<b>c</b></textarea>", "<iframe></iframe><textarea>a</textarea>"),
        ("<plaintext>a</plaintext>b", "<pre>a</pre>b"),
        ("<!-- a --><?php b ?>c", "c"),
    ],
)
def test_a_page_becomes_what_a_browser_shows_of_it(xhtml, html):
    assert body_of(xhtml) == html


def test_other_elements_in_the_head_do_not_end_it():
    rdf = '<rdf:RDF xmlns:rdf="urn:rdf"><rdf:li>x</rdf:li></rdf:RDF><meta name="robots" content="noindex"/>'
    page = html_of_xhtml(f"<html><head>{rdf}</head><body/></html>".encode())
    assert page == b'<!DOCTYPE html><html><head><meta name="robots" content="noindex"></head><body></body></html>'


@pytest.mark.parametrize(
    "page",
    [
        b"<html><body><p>not closed</body></html>",
        b"<html><body>&nosuch;</body></html>",
        b"<html><body>" + b"<![CDATA[" * 1000 + b"</body></html>",
        b"<html><body>\xff</body></html>",
        b"<html><body>\0</body></html>",
        b"<html><body>cut",
        b"<p>no page</p>",
        f'<x:html xmlns:x="urn:x">{SPACE}</x:html>'.encode(),
        b'<!DOCTYPE html [<!ENTITY a "b">]><html><body>&a;</body></html>',
        b'<!DOCTYPE html [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body>&a;</body></html>',
        b'<!DOCTYPE html [<!ENTITY % a SYSTEM "http://127.0.0.1:1/">%a;]><html><body>x</body></html>',
        b"",
    ],
)
def test_a_page_that_is_no_plain_xhtml_is_left_to_the_html_parser(page):
    assert html_of_xhtml(page) is None


def test_an_external_document_type_is_not_fetched():
    kind = b'<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "http://127.0.0.1:1/xhtml1-strict.dtd">'
    page = html_of_xhtml(kind + b"<html><body>&nbsp;&own;</body></html>")
    assert page == "<!DOCTYPE html><html><body>\xa0&amp;own;</body></html>".encode()


def test_attributes_that_a_document_type_declares_for_all_elements_are_left_out():
    kind = b'<!DOCTYPE html [<!ATTLIST p title CDATA "%s">]>' % (b"x" * 1000)
    page = html_of_xhtml(kind + b"<html><body>" + b"<p class='a'/>" * 1000 + b"</body></html>")
    assert page == b"<!DOCTYPE html><html><body>" + b'<p class="a"></p>' * 1000 + b"</body></html>"


def test_a_hostile_page_takes_little_time():
    begun = time.process_time()
    html_of_xhtml(b"<html>" + b"<b>" * 300_000 + b"</b>" * 300_000 + b"</html>")
    html_of_xhtml(b"<html>" + b"<![CDATA[&amp;]]>" * 100_000 + b"</html>")
    html_of_xhtml(b"<html>" + b"<script>a</script>" * 100_000 + b"</html>")
    html_of_xhtml(b"<html><p " + b" ".join(b"a%d=''" % number for number in range(100_000)) + b"/></html>")
    assert time.process_time() - begun < 10  # quadratic time would take minutes
