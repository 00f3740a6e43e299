"""How postal addresses are written: one regular expression per country, from the house number on.

Used by `postal_address`. Every repetition is bounded. Sources: USPS Publication 28 (United States), Royal Mail's
postcode format and BS 7666 (United Kingdom), DIN 5008 (Germany, Austria, Switzerland), NF Z10-011 (France).
"""

import re

_UP = "A-ZÀ-ÖØ-Þ"
_WORD = rf"[{_UP}][\w'’-]{{0,24}}"
_SMALL = "of|the|and|le|la|les|de|du|des|en|sur|sous|am|im|an der|bei"
_NAME = rf"{_WORD}(?:\.? (?:(?:{_SMALL}) )?{_WORD}){{0,4}}?"
# A town after its postcode: what follows it in the line is often another capitalised word.
_PLACE = (
    rf"(?:(?:Bad|Sankt|St\.|Markt|Groß|Klein|Neu|Alt|La|Le|Les|Saint|Sainte) )?{_WORD}"
    rf"(?: (?:am|an der|an den|im|in der|bei|ob der|vor der|sur|sous|en|lès|de|du|le|la) {_WORD}){{0,2}}"
)
# Between two lines of an address: a comma, a bar or dot of a web page's footer, a new line, or a space.
_GAP = r"(?:[ ]*[,|·][ ]?|[ ]?)\n?[ ]?(?<=[,|·\s])"
_NUMBER = r"(?<![\w.,:/$€£+-])[0-9]{1,5}(?:-[0-9]{1,4})?[A-Za-z]?"

_STREET_TYPE = (
    r"(?:(?:St|Ave|Blvd|Rd|Ln|Dr|Ct|Pl|Ter|Cir|Hwy|Pkwy|Sq|Trl)\b\.?|(?:Street|Avenue|Boulevard|Road|Lane|Drive|Court|Way"
    r"|Place|Terrace|Circle|Highway|Parkway|Square|Trail|Close|Gardens|Crescent|Grove|Mews|Hill|Row|Walk|Green|Rise"
    r"|Broadway|Alley|Plaza)\b)"
)
_UNIT = rf"(?:{_GAP}(?:Apt|Apartment|Suite|Ste|Unit|Flat|Room|Rm|#|Floor|Fl)\.? ?#?[0-9A-Z-]{{1,6}}\b)"
_STATE = (
    r"(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|P[AR]|RI|S[CD]|T[NX]|UT|V[AT]"
    r"|W[AIVY]|Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia|Hawaii|Idaho"
    r"|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi"
    r"|Missouri|Montana|Nebraska|Nevada|New (?:Hampshire|Jersey|Mexico|York)|(?:North|South) (?:Carolina|Dakota)|Ohio"
    r"|Oklahoma|Oregon|Pennsylvania|Rhode Island|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia"
    r"|Wisconsin|Wyoming)"
)
_US_TOWN = rf"{_GAP}{_NAME}{_GAP}{_STATE}\.?{_GAP}[0-9]{{5}}(?:-[0-9]{{4}})?(?![0-9])"
US = re.compile(
    rf"{_NUMBER} (?:[NSEW]{{1,2}}\.? )?(?:[0-9]{{1,3}}(?:st|nd|rd|th)|{_NAME}) {_STREET_TYPE}(?: [NSEW]{{1,2}}\b\.?)?"
    rf"(?P<unit>{_UNIT})?(?P<town>{_US_TOWN})?"
)
US_BOX = re.compile(rf"[0-9]{{1,6}}{_US_TOWN}")
US_BOX_BEFORE = re.compile(r"\bP\.? ?O\.? Box $")

_POSTCODE = r"(?:GIR ?0AA|[A-PR-UWYZ][A-HK-Y]?[0-9][0-9A-HJKPSTUW]? ?[0-9][ABD-HJLNP-UW-Z]{2})"
GB_CODE = re.compile(rf"[, \n]{_POSTCODE}(?![0-9A-Za-z])")
GB = re.compile(
    rf"{_NUMBER},? {_WORD}\.?(?:,? ?\n?(?<=[, \n])(?:{_WORD}\.?|of|the|upon|on|by|le|in|and|&))*,? ?\n?{_POSTCODE}"
)
GB_FLAT_BEFORE = re.compile(r"\b(?:Flat|Apartment|Apt\.?|Unit|Suite|Room) [0-9A-Z]{1,4},? ?\n?$")

FR = re.compile(
    rf"{_NUMBER}(?: ?(?:bis|ter|quater)\b)?,? "
    r"(?i:rue|avenue|av\.|boulevard|bd|blvd|place|pl\.|impasse|allée|allées|chemin|quai|cours|route|square|passage"
    r"|faubourg|esplanade|sentier|villa|cité|rond-point)\b (?:(?i:de|du|des|la|le|les|l|d|aux?|sur)[ '’]){0,3}"
    rf"(?:[\w'’.-]{{1,24}} ?){{1,6}}?(?P<town>{_GAP}(?:F-)?[0-9]{{5}} {_PLACE}(?: [0-9]{{1,2}}(?:e|er)?\b)?)?(?!\w)"
)

DE = re.compile(
    rf"{_NUMBER}(?P<town>{_GAP}(?:D-|DE-|A-|AT-|CH-)?[0-9]{{4,5}} {_PLACE}(?: \([{_UP}][\w. ]{{1,20}}\))?)?(?!\w)"
)
DE_STREET_BEFORE = re.compile(
    rf"(?<!\w)(?:(?:{_WORD}[ -]){{0,3}}"
    rf"(?:[{_UP}][\wß-]{{0,30}}(?:straße|strasse|str\.|weg|platz|allee|gasse|ring|damm|ufer|hof|markt|chaussee|steig|pfad"
    r"|graben|berg|wall|zeile|kamp|stieg)"
    r"|(?:Straße|Strasse|Str\.|Weg|Platz|Allee|Ring|Ufer|Markt)(?: (?:des|der|am|an der) [\w. ]{2,24})?)"
    r"|(?:Am|An der|An den|Auf der|Auf dem|Im|In der|In den|Unter den|Zum|Zur|Hinter der|Vor dem|Alte|Alter|Neue|Neuer)"
    rf" {_WORD}) $"
)

# Where a house number may stand: by what goes before it or follows it, in German, French, or English.
HOUSES = re.compile(
    r"[0-9](?<![\w.,/$€£+-][0-9])(?:"
    r"(?P<DE>(?<=(?:aße|sse|tr\.|weg|atz|lee|ing|fer|amm) [0-9])"
    r"|(?=[0-9]{0,4} ?[a-z]?(?: ?[,|·])?[ \n]{1,2}(?:[ACDEHT]{1,2}-)?[0-9]{4,5} [A-ZÀ-Þ]))"
    r"|(?P<FR>(?=[0-9]{0,4}(?: ?(?:bis|ter|quater))?,? "
    r"(?i:ru|av|bo|bd|bl|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci)[A-Za-z.]))"
    r"|(?P<US>(?=[0-9]{0,5}(?:-[0-9]{1,4})?[A-Za-z]?,? (?:[A-Z][\w'’. ]|[0-9]{1,3}(?:st|nd|rd|th) [A-Z])))"
    r")"
)
