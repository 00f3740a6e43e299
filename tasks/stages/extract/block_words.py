"""Words by which publishing systems name the parts of a page, and with which such parts begin."""

import functools
import re
from collections.abc import Iterable

# Groups of names of elements: what furniture is made of, and what stories are.
_TAG_WORDS = {
    "a": "a",
    "aside": "aside",
    "header": "header hgroup",
    "article": "article",
    "main": "main",
    "form": "form fieldset label legend",
    "list": "ul ol dl menu",
    "item": "li dd dt",
    "table": "table",
    "cell": "td th",
    "quote": "blockquote q",
    "figure": "figure",
    "figcaption": "figcaption",
    "h1": "h1",
    "h2": "h2",
    "h3": "h3",
    "h_small": "h4 h5 h6",
    "p": "p",
    "pre": "pre code samp kbd",
    "bold": "b strong",
    "italic": "i em cite",
    "time": "time",
    "section": "section",
    "font": "font center u",
    "hidden": "hidden",
}
# Groups of parts of classes, ids, roles and item properties, in the languages of the pages trained on.
_NAME_WORDS = {
    "comment": "comment kommentar disqus respond reply discussion livefyre leserbrief trackback pingback",
    "share": """
        share sharing social teilen facebook twitter addthis addtoany sociable shariff follow bookmark tweet""",
    "related": """
        related recommend similar verwandt weitere outbrain taboola yarpp read-more readmore read-also more-""",
    "sidebar": """
        sidebar side-bar widget rightcol leftcol right-col left-col secondary complementary seitenleiste
        marginal""",
    "navigation": "nav menu breadcrumb crumb jump skip topbar tabs toolbar",
    "pages": "pagination pager paging prev next page-links",
    "footer": "foot bottom imprint impressum colophon contentinfo",
    "header": "header masthead banner branding logo claim",
    "meta": """
        meta byline author autor posted publish datum date time entry-info postinfo post-info dateline details
        infos kicker dachzeile ressort""",
    "tags": "tag categor kategorie schlagw keyword topic rubrik label filed",
    "caption": "caption credit bildunter legend copyright bildquelle quelle source attachment",
    "newsletter": "newsletter subscri signup sign-up abo- abonn optin opt-in mailing",
    "ads": "advert anzeige werbung sponsor promo adsense ad- ads banner- -ad cta affiliate",
    "cookie": "cookie consent gdpr privacy datenschutz notice hinweis",
    "popup": "popup modal overlay lightbox hidden invisible sr-only screen-reader visually tooltip dropdown",
    "teaser": """
        teaser excerpt preview card- tile latest recent archive popular trending top- most- newest mostread
        meist featured""",
    "summary": "summary lead intro vorspann subtitle sub-title standfirst deck dek abstract subline anleser",
    "content": "content inhalt body",
    "entry": "entry article artikel post- hentry beitrag blogpost single",
    "story": """
        story richtext articlebody entry-content post-content post-body entry-body articletext article-text
        article-body text-""",
    "text": "text copy para absatz",
    "title": "title titel headline heading ueberschrift",
    "media": """
        gallery galerie slide carousel image bild photo foto thumb picture video player audio media figure
        lightbox""",
    "box": "box panel callout infobox factbox block-",
    "tools": "print mail pdf drucken rss feed tools action button btn",
    "search": "search suche login log-in register user account profil form",
    "toc": "toc table-of-contents inhaltsverzeichnis index anchor",
    "quote": "quote zitat pull",
    "notes": "footnote fussnote reference reflist bibliograph literatur endnote",
    "shop": "product price cart shop preis warenkorb add-to checkout",
    "bio": "bio vita about avatar gravatar vcard author-box authorbox author-info",
    "rating": "rating vote like star review bewertung",
    "donate": "donat spend support patreon paypal flattr steady vgwort paywall",
    "event": "event calendar kalender termin weather wetter poll quiz umfrage",
    "wrapper": "wrap container layout grid row col- column main page site",
    "list": "list liste",
    "first": "first last",
}  # fmt: skip
GROUPS = (*(f"tag_{name}" for name in _TAG_WORDS), *(f"named_{name}" for name in _NAME_WORDS))
"""Names of the groups, in order."""
NAMED = {tag: (number,) for number, tags in enumerate(_TAG_WORDS.values()) for tag in tags.split()}
"""Groups of the name of an element."""
_OF_WORD = {
    word: len(_TAG_WORDS) + number for number, words in reversed(list(enumerate(_NAME_WORDS.values()))) for word in words.split()
}


def _longest_of(words: Iterable[str]) -> str:
    """Returns a pattern of the longest word at a place.

    Beginnings are shared: an alternation that tries each of 400 words at each letter takes five times as long.
    """
    ends, behind = "", dict[str, list[str]]()
    for word in words:
        if word:
            behind.setdefault(word[0], []).append(word[1:])
        else:
            ends = "?"
    pattern = "|".join(re.escape(letter) + _longest_of(rest) for letter, rest in sorted(behind.items()))
    return f"(?:{pattern}){ends}" if pattern else ""


_NAME_WORD = re.compile(_longest_of(_OF_WORD))


@functools.lru_cache(1 << 14)
def groups_of(names: str) -> tuple[int, ...]:
    """Returns the groups of a class, id, role or item property."""
    return tuple({_OF_WORD[word] for word in _NAME_WORD.findall(names.lower())})


# Words with which furniture speaks: whole words, or with a star their beginnings of five letters or more.
_SAYINGS = {
    "furniture": """
        copyright rights rechte droits impress* imprint terms powered posted publish* updated veröff* geschr*
        erstell* aktuali* author autor autorin submitt* filed tags tagged tag categor* kategor* schlagw*
        keyword* labels abgeleg* share teilen tweet facebook twitter whatsapp drucken print email mail pinteres*
        like gefällt bookmark empfeh* weiters* follow folge linkedin xing reddit instagr* read weiterl* lesen
        siehe related verwand* ähnlich weitere interes* recomm* links recent latest popular neueste neuest*
        letzte beliebt* meistge* trending previous next prev zurück vorheri* nächst* older newer ältere neuere
        home start menü menu navigat* newslet* subscri* abonni* anmeld* login log registr* passwo* account konto
        cookie cookies datensc* privacy zustimm* akzepti* consent gdpr dsgvo javascr* browser spende spenden
        donat* unterst* support patreon paypal steady flattr member* mitglie* anzeige anzeigen adverti* werbung
        sponsor* affilia* warenko* cart preis shop suche search sitemap rss feed kontakt contact hilfe help faq
        licen* lizenz commons views aufrufe klicks video videos podcast download abonn* click klick hier here
        more mehr jetzt now free kostenl* lire suivant partager""",
    "comment": """
        comment comments commen* kommen* antwort* reply replies says sagt schreibt schrieb leave respon*
        trackba* pingba* meinung discuss* diskut*""",
    "credit": """
        foto fotos photo photos bild bilder image images quelle quellen source sources credit credits abb
        abbildu* grafik getty dpa reuters afp ap courtesy illustr* picture imago shutter* pixabay unsplash
        flickr wikimed* symbol*""",
}  # fmt: skip
SAYINGS = (*(f"says_{name}" for name in _SAYINGS), "says_date")
"""Names of the kinds of sayings, in order."""
_BEGINNING = 5
_EXACT = {word: kind for kind, words in enumerate(_SAYINGS.values()) for word in words.split() if word[-1] != "*"}
_BEGINS = {
    word[:_BEGINNING]: kind for kind, words in enumerate(_SAYINGS.values()) for word in words.split() if word[-1] == "*"
}
_MARKS = frozenset("©«»←→‹›")
_SPOKEN = re.compile(r"[^\W\d_]+|[©«»←→‹›]")
_DIGIT = re.compile(r"\d")  # every date has one, and few starts do
_DATE = re.compile(
    r"\d{1,2}[./-]\s?\d{1,2}[./-]\s?(?:19|20)?\d\d|(?:19|20)\d\d-\d\d|\d{1,2}:\d\d"
    r"|\d{1,2}\.? (?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d"
)


@functools.lru_cache(1 << 14)
def sayings_of(start: str) -> tuple[float, ...]:
    """Returns the share of words of each kind in the start of a block, in lower case, and whether it has a date."""
    words = _SPOKEN.findall(start)
    counts = [0.0] * len(SAYINGS)
    for word in words:
        kind = _EXACT.get(word)
        if kind is None:
            kind = 0 if word in _MARKS else _BEGINS.get(word[:_BEGINNING])
        if kind is not None:
            counts[kind] += 1 / len(words)
    counts[-1] = float(_DIGIT.search(start) is not None and _DATE.search(start) is not None)
    return tuple(counts)
