"""Formats of postal addresses: one regular expression per country, from the house number on.

Every repetition is bounded, and a run of characters matches in one way only: words are matched possessively ("+" behind
a quantifier), and whatever follows begins with a character that does not occur in words. With two ways to match a run,
a hundred characters cost half a minute.

Sources: Royal Mail's postcode format and BS 7666 (United Kingdom), DIN 5008 (Germany; Austria and Switzerland write
alike), NF Z10-011 (France), and UPU S42 for Spain, Italy and the Netherlands.
"""

import re

_UP = "A-ZÀ-ÖØ-Þ"
_WORD = rf"[{_UP}][\w'’-]{{0,47}}+"
_SMALL = "of|the|and|le|la|les|de|du|des|en|sur|sous|am|im|an der|bei"
NAME = rf"{_WORD}(?:\.? (?:(?:{_SMALL}) )?{_WORD}){{0,4}}?"
# A town after its postcode: often another capitalised word follows in the line.
_PLACE = (
    rf"(?:(?:Bad|Sankt|St\.|Markt|Groß|Klein|Neu|Alt|La|Le|Les|Saint|Sainte|De|Den|Het) )?{_WORD}"
    rf"(?: (?:am|an der|an den|im|in der|bei|ob der|vor der|sur|sous|en|lès|de|du|le|la) {_WORD}){{0,2}}"
)
# Between two lines of an address: a comma, a bar, dash or dot of a web page's footer, new lines with the indentation of
# what follows, or a space.
GAP = r"(?>(?:[ ]{0,9}+[,;|·–][ ]?|[ ]?)(?:\n{1,2}[ \t]{0,40}+|[ ]?))(?<=[,;|·–\s])"
# Not the end of another number: of a time, a price, a file. ":" and "," behind a word separate it from a label.
NUMBER = r"(?<![\w./$€£+-])(?<![0-9][,:])[0-9]{1,5}(?:-[0-9]{1,4})?[A-Za-z]?"

# What some part of every British postcode looks like: where none is near, no form need be tried.
POSTCODE_HINT = re.compile(r"[0-9] ?[A-Z]{2}")

_POSTCODE = r"(?:GIR ?0AA|[A-PR-UWYZ][A-HK-Y]?[0-9][0-9A-HJKPSTUW]? ?[0-9][ABD-HJLNP-UW-Z]{2})"
GB_CODE = re.compile(rf"[, \n]{_POSTCODE}(?![0-9A-Za-z])")
GB = re.compile(
    rf"{NUMBER},?[ \n]{_WORD}\.?(?:,? ?\n?(?<=[, \n])(?:{_WORD}\.?|of|the|upon|on|by|le|in|and|&))*,? ?\n?{_POSTCODE}"
)
GB_FLAT_BEFORE = re.compile(r"\b(?:Flat|Apartment|Apt\.?|Unit|Suite|Room|Studio) (?:[0-9A-Z]{1,4},? ?\n?)?$")

FR = re.compile(
    rf"{NUMBER}(?: ?(?:bis|ter|quater)\b)?,? "
    r"(?i:rue|avenue|av\.|boulevard|bd|blvd|place|pl\.|impasse|allée|allées|chemin|quai|cours|route|square|passage"
    r"|faubourg|esplanade|sentier|villa|cité|rond-point)\b (?:(?i:de|du|des|la|le|les|l|d|aux?|sur)[ '’]){0,3}"
    r"(?:[\w'’.-]{1,48}+(?: |(?![\w'’.-]))){1,6}?"
    rf"(?P<town>{GAP}(?:F ?- ?)?[0-9]{{5}} {_PLACE}(?: [0-9]{{1,2}}(?:e|er)?\b)?)?(?!\w)"
)

# Countries that write the street first: what may follow the house number, and the street before it.
_HOUSE = r"(?<![\w.:/$€£+-])[0-9]{1,5}(?: ?[A-Za-z])?(?:[-/+][0-9]{1,4}[a-z]?)?"
_TYPES_DE = (
    "straße|strasse|weg|platz|allee|gasse|ring|damm|ufer|hof|markt|chaussee|steig|pfad|graben|berg|wall|zeile|kamp"
    "|stieg"
)
_TITLED_DE = "|".join(name.capitalize() for name in _TYPES_DE.split("|"))
_TYPES_NL = "straat|laan|weg|plein|gracht|kade|singel|dijk|hof|pad|steeg|dreef|boulevard|markt|haven|wal|baan"


def _ends_in(types: str) -> str:
    """Returns a look back from the end of a word at its type, which is written small or, behind a dash, large."""
    return "(?:" + "|".join(rf"(?<=[{name[0].upper()}{name[0]}]{name[1:]})" for name in types.split("|")) + ")"


_LAND = "(?:[A-Z]{1,2}(?: ?- ?| )?)?"
_FIVE = rf"{GAP}{_LAND}[0-9]{{4,5}},? {_PLACE}(?: \([{_UP}][\w. ]{{0,20}}\))?"
_DUTCH = rf"{GAP}{_LAND}[1-9][0-9]{{3}} {{0,2}}[A-Z]{{2}}{GAP}(?:'s-)?{_PLACE}"
TAIL = {
    "DE": re.compile(rf"{_HOUSE}(?P<town>{_FIVE})?(?!\w)"),
    "NL": re.compile(rf"{_HOUSE}(?P<town>{_DUTCH})?(?!\w)"),
    "ES": re.compile(rf"{_HOUSE}(?P<town>{_FIVE})?(?!\w)"),
    "IT": re.compile(rf"{_HOUSE}(?P<town>{_FIVE})?(?!\w)"),
}
STREET_BEFORE = {
    "DE": re.compile(
        rf"(?<!\w)(?:(?:{_WORD} ){{0,3}}{_WORD}(?:{_ends_in(_TYPES_DE)}|(?<=[Ss]tr)\.)"
        rf"|(?:{_WORD} ){{0,3}}(?:{_TITLED_DE}|Str\.)"
        r" (?:des|der|am|an der) [\w. ]{2,24}"
        r"|(?:Am|An der|An den|Auf der|Auf dem|Im|In der|In den|Unter den|Zum|Zur|Hinter der|Vor dem|Alte|Alter|Neue"
        rf"|Neuer) {_WORD}) $"
    ),
    "NL": re.compile(rf"(?<!\w)(?:{_WORD} ){{0,3}}{_WORD}{_ends_in(_TYPES_NL)} $"),
    "ES": re.compile(
        r"(?<!\w)(?:C/|Calle|Avenida|Avda\.|Av\.|Paseo|Plaza|Pza\.|Ronda|Camino|Carretera|Travesía|Glorieta|Pasaje)"
        rf" ?(?:(?:de|del|la|las|los|el) ){{0,2}}{_WORD}(?: (?:(?:de|del|la|y) )?{_WORD}){{0,3}},? {{0,2}}(?:n\.?º ?)?$"
    ),
    "IT": re.compile(
        r"(?<!\w)(?:Via|Viale|V\.le|Piazza|P\.zza|Piazzale|Corso|C\.so|Largo|Vicolo|Strada|Contrada|Lungotevere)"
        rf" (?:(?:del|della|dei|delle|degli|di|la|le|i) ){{0,2}}{_WORD}(?: (?:(?:di|del|e) )?{_WORD}){{0,3}}"
        r",? {0,2}(?:n\.? ?)?$"
    ),
}

# Context of a house number: what may precede or follow it, in German, French, or English.
HOUSES = re.compile(
    r"[0-9](?<![\w./$€£+-][0-9])(?<![0-9],[0-9])(?:"
    r"(?P<DE>(?<=(?:aße|sse|tr\.|weg|atz|lee|ing|fer|amm) [0-9])"
    r"|(?=[0-9]{0,4}+(?: ?[A-Za-z])?(?:[-/+][0-9]{1,4}[a-z]?)?"
    r"(?:(?: ?[,;|·–])[ \n]{0,3}|[ \n]{1,3})(?:[A-Z]{1,2}-)?[0-9]{4,5}(?:,? [A-ZÀ-Þ]|[A-Z]{2}\b)))"
    r"|(?P<FR>(?=[0-9]{0,4}+(?: ?(?:bis|ter|quater))?,? "
    r"(?i:ru|av|bo|bd|bl|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci)[A-Za-z.]))"
    r"|(?P<US>(?=[0-9]{0,5}+(?:-[0-9]{1,4})?[A-Za-z]?,?[ \n](?:[A-Z][\w'’. ]|[0-9]{1,3}(?:st|nd|rd|th) [A-Z])))"
    r")"
)
