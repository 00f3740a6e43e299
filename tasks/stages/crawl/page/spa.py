"""Does a page need a browser to show its text? A guess from the HTML as sent."""

import re

ENOUGH_TEXT = 1000
"""Characters of text from which on a page is taken to be readable as it is."""

_READ = 256 << 10
_FEW_CHARS = 400
_SCRIPT_SHARE = 0.5

# Where frameworks put their page: React, Next, Nuxt, Vue, Gatsby, Svelte, Ember. All repetitions are bounded: on
# hostile input an unbounded one is quadratic.
_CONTAINER = re.compile(
    rb"""<(?:div|main|section|body)\b[^<>]{0,500}?\bid\s{0,9}=\s{0,9}["']?"""
    rb"""(?:root|app|__next|__nuxt|___gatsby|svelte|ember-root|react-root|app-root)["'\s>][^<>]{0,500}""",
    re.I,
)
_EMPTY = re.compile(rb">?(?:\s|<!--[^<>]{0,200}-->){0,200}</(?:div|main|section|body)", re.I)
_COMPONENT = re.compile(rb"<([a-z][a-z0-9]{0,30}-[a-z0-9-]{1,30})\b[^<>]{0,500}>\s{0,200}</\1\s{0,9}>", re.I)
_ANGULAR = re.compile(rb"<(?:html|body|div)\b[^<>]{0,500}?\b(?:data-)?ng-app\b", re.I)
_NOSCRIPT = re.compile(rb"<noscript\b[^<>]{0,200}>.{0,300}?javascript", re.I | re.S)
_SCRIPT = re.compile(rb"<script\b", re.I)
_SCRIPT_END = re.compile(rb"</script", re.I)


def needs_browser(html: bytes, text_chars: int) -> bool:
    """Tells whether the text of a page seems to be made by its scripts.

    Args:
        html: the decoded body; the first 256 KiB are looked at.
        text_chars: characters of text that the page shows as it is.

    >>> needs_browser(b'<div id="root"></div><script src="/app.js"></script>', 0)
    True
    >>> needs_browser(b"<p>A short page.</p>", 13)
    False
    """
    if text_chars >= ENOUGH_TEXT:
        return False
    html = html[:_READ]
    if not _SCRIPT.search(html):
        return False
    container = _CONTAINER.search(html)
    if container and _EMPTY.match(html, container.end()):
        return True
    if text_chars >= _FEW_CHARS:
        return False
    # With next to no text a container that holds a waiting sign, or any other trace of a framework, is enough.
    if container or _COMPONENT.search(html) or _ANGULAR.search(html):
        return True
    return bool(_NOSCRIPT.search(html)) or _script_bytes(html) > _SCRIPT_SHARE * len(html)


def _script_bytes(html: bytes) -> int:
    total, position = 0, 0
    while begin := _SCRIPT.search(html, position):
        end = _SCRIPT_END.search(html, begin.end())
        position = end.end() if end else len(html)
        total += position - begin.start()
    return total
