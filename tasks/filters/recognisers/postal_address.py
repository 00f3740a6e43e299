r"""Postal addresses: house number and street, with further evidence.

A street line alone ("10 Downing Street") names a place; with a postcode and town, a unit, or a label, it is personal
data. Addresses are matched from the house number on, by one expression per country. Those of the United States and
Canada are matched backward from their most distinctive part, the state and postcode of the last line ("NJ 07701"): the
text before it is part of the address as long as it consists of names, numbers, small words and line ends with
indentation, back to a house number or a post office box. A unit before that, such as a suite or a floor, is included.

Every repetition is bounded and possessive ("+" after a quantifier), and a run of characters matches in only one way:
whatever follows a word begins with a character that does not occur in words. If a run could match in two ways, a
hundred characters would take half a minute. `_AMERICAN_LONGEST` characters before a postcode are examined, once for
each of the `_MOST_HOUSES` nearest numbers that may be a house number.

Sources: Royal Mail's postcode format and BS 7666 (United Kingdom), DIN 5008 (Germany; similar in Austria and
Switzerland), NF Z10-011 (France), UPU S42 for Spain, Italy and the Netherlands; USPS Publication 28 (lines of an
address, states, street suffixes, unit designators), Canada Post's addressing guidelines.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from tasks.filters.recognisers.span import Evidence, Labels, PiiSpan

_UP = "A-ZÀ-ÖØ-Þ"
_WORD = rf"[{_UP}][\w'’-]{{0,47}}+"
_SMALL = "of|the|and|le|la|les|de|du|des|en|sur|sous|am|im|an der|bei"
NAME = rf"{_WORD}(?:\.? (?:(?:{_SMALL}) )?{_WORD}){{0,4}}?"
# A town after its postcode; often another capitalized word follows on the line.
_PLACE = (
    rf"(?:(?:Bad|Sankt|St\.|Markt|Groß|Klein|Neu|Alt|La|Le|Les|Saint|Sainte|De|Den|Het) )?{_WORD}"
    rf"(?: (?:am|an der|an den|im|in der|bei|ob der|vor der|sur|sous|en|lès|de|du|le|la) {_WORD}){{0,2}}"
)
# Between two lines of an address: a comma, a bar, dash or dot as in the footer of a web page, line ends with
# indentation, or a space.
GAP = r"(?>(?:[ ]{0,9}+[,;|·–][ ]?|[ ]?)(?:\n{1,2}[ \t]{0,40}+|[ ]?))(?<=[,;|·–\s])"
# Not the end of another number, such as a time, a price or a file name. ":" and "," after a word may precede it.
NUMBER = r"(?<![\w./$€£+-])(?<![0-9][,:])[0-9]{1,5}(?:-[0-9]{1,4})?[A-Za-z]?"

# Part of every British postcode; without a match nearby, no further expression is tried.
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

# Countries that write the street first: the house number with the town after it, and the street before it.
_HOUSE = r"(?<![\w.:/$€£+-])[0-9]{1,5}(?: ?[A-Za-z])?(?:[-/+][0-9]{1,4}[a-z]?)?"
_TYPES_DE = (
    "straße|strasse|weg|platz|allee|gasse|ring|damm|ufer|hof|markt|chaussee|steig|pfad|graben|berg|wall|zeile|kamp"
    "|stieg"
)
_TITLED_DE = "|".join(name.capitalize() for name in _TYPES_DE.split("|"))
_TYPES_NL = "straat|laan|weg|plein|gracht|kade|singel|dijk|hof|pad|steeg|dreef|boulevard|markt|haven|wal|baan"


def _ends_in(types: str) -> str:
    """Returns a lookbehind for a type of street at the end of a word, in lower case or capitalized."""
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

# Context before or after a house number in German, French, or English.
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

_AMERICAN_LONGEST = 150
_MOST_HOUSES = 6
_STATE_LONGEST = 75

_STATES = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|District of Columbia|Florida|Georgia"
    "|Hawaii|Idaho|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota"
    "|Mississippi|Missouri|Montana|Nebraska|Nevada|New (?:Hampshire|Jersey|Mexico|York)|(?:North|South) "
    "(?:Carolina|Dakota)|Ohio|Oklahoma|Oregon|Pennsylvania|Puerto Rico|Rhode Island|Tennessee|Texas|Utah|Vermont"
    "|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
)
_CODES = (
    r"A[KLRZ]|C[AOT]|D(?:C|E|\.C\.)|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|N\.[JY]\.|O[HKR]|P[AR]|RI|S[CD]"
    r"|T[NX]|UT|V[AT]|W[AIVY]|Mass|Calif|Conn|Ill|Mich|Minn|Penna?|Tex|Wash"
)
_PROVINCES = (
    "Alberta|British Columbia|Manitoba|New Brunswick|Newfoundland(?: and Labrador)?|Nova Scotia|Ontario"
    "|Prince Edward Island|Qu[eé]bec|Saskatchewan|Yukon"
)
_SHORT_TYPES = "St|Ave?|Blvd|Rd|Ln|Dr|Ct|Pl|Terr?|Cir|Hwy|Pkwy|Pky|Sq|Trl|Cres"
_TYPES = (
    "Street|Avenue|Boulevard|Road|Lane|Drive|Court|Way|Place|Terrace|Circle|Highway|Parkway|Square|Trail|Close|Gardens"
    "|Crescent|Grove|Mews|Hill|Row|Walk|Green|Rise|Broadway|Alley|Plaza"
)
# Types of streets only in the last lines of an address; elsewhere they are other words.
_MORE_TYPES = (
    "Pike|Turnpike|Tpke|Loop|Run|Bend|Cove|Crossing|Xing|Point|Pt|Ridge|Path|Pass|Park|Heights|Hts|Freeway|Fwy"
    "|Expressway|Expy|Esplanade|Commons?|Landing|Mall|Center|Centre|Ctr|Route|Rte|Wharf|Bypass|Causeway|Real|Rue|Boul|Chemin"
)

# A postcode from its first digit on; the first letter of a Canadian one is matched with the province before it.
_AMERICAN_POSTCODE = re.compile(
    r"[0-9](?:(?:(?<=[A-Za-z.)*#/>|%;\s]\s[0-9])|(?<=[A-Za-z.],\s[0-9])|(?<=[A-Za-z],[0-9]))[0-9]{4}"
    r"(?: ?- ?[0-9]{4})?(?![0-9])"
    r"|(?P<CA>(?<=[A-Z][0-9])[A-Z][ -]?[0-9][A-Z][0-9](?![0-9A-Za-z])))"
)

_BETWEEN = r"[ \t\n,*#/>|%.;]{1,40}+"
_STATE_BEFORE = re.compile(rf"(?<![A-Za-z])(?:{_CODES}|(?i:{_STATES}))\.?{_BETWEEN}\Z")
_PROVINCE_BEFORE = re.compile(
    rf"(?<![A-Za-z])(?:AB|BC|MB|N[BLSTU]|ON|PE|PQ|QC|SK|YT|(?i:{_PROVINCES}))[.)]?(?:{_BETWEEN}(?i:Canada))?"
    rf"{_BETWEEN}[A-Z]\Z"
)

# Marks of comments and quotations at the beginning of lines, which are replaced with blanks.
_LINE = re.compile(r"\n[ \t]{0,40}+(?:(?:[#*;>|.!%•]{1,3}|//|dnl|[A-Z]:)[ \t])?")

_UNIT_WORD = (
    r"(?:Apt|Apartment|Suite|Ste|Unit|Flat|Room|Rm|Floor|Flr?|Bldg|Building|Lot|Dept|Mail ?Stop|M/?S|PMB|Penthouse"
    r"|Tower|Level)"
)
_UNIT = (
    rf"(?:(?i:{_UNIT_WORD})\.?[ ]{{0,2}}(?:\#[ ]?)?(?:[A-Z]?-?[0-9]{{1,6}}[A-Za-z]?|[A-Z](?![A-Za-z]))"
    r"|\#[ ]?[0-9A-Z-]{1,6}|[0-9]{1,2}(?:st|nd|rd|th)[ ][Ff]loor|[A-Z][a-z]{3,10}[ ][Ff]loor)"
)
_UNIT_BEFORE = re.compile(rf"(?<![\w#]){_UNIT}[ \t\n,;-]{{1,40}}+\Z")
_OF_A_UNIT = re.compile(rf"(?:(?<![A-Za-z])(?i:{_UNIT_WORD})\.?[ ]{{0,2}}|\#[ ]?)\Z")

_BOX = r"(?:(?:P\.? ?O\.?|Post(?:al)? Office) ?)?(?:Box|BOX|box|Drawer)|P\.?O\.?B\.?"
_SPELT = "One|Two|Three|Four|Five|Six|Seven|Eight|Nine|Ten"
# A house number or post office box, not followed by a word or another number.
_AMERICAN_HOUSE = re.compile(
    rf"(?<![\w./$€£+%-])(?<![0-9][,:])(?:(?P<box>(?:{_BOX})[ ]{{0,2}}#?[0-9]{{1,7}}(?![0-9]))"
    r"|[0-9]{1,6}(?:-[0-9]{1,5})?(?:[A-Za-z]|[ ]1/2)?(?=[ \t\n,])"
    rf"|(?:{_SPELT})(?=[ ][A-Z]))"
)
# A year is a house number only before the name of a street.
_YEAR = re.compile("(?:19|20)[0-9]{2}(?![0-9])")

_AMERICAN_SMALL = (
    "of|the|and|at|on|by|de|la|le|las|los|el|del|du|des|da|suite|floor|apt|apartment|room|unit|box|building|bldg"
    "|rue|boul|chemin|avenue"
)
_APART = r"[\s,;:|·–—()/-]{1,60}+"
_TOKEN = rf"(?:[A-ZÀ-ÖØ-Þ0-9#&][\w'’.&/#-]{{0,40}}+|(?:{_AMERICAN_SMALL})(?![\w'’]))"
_STRETCH = re.compile(rf"{_APART}(?:{_TOKEN}{_APART}){{1,18}}+")
_STREET_WORD = (
    rf"(?i:(?<=\w[ \n])(?:{_SHORT_TYPES}|{_TYPES}|{_MORE_TYPES})(?![A-Za-z]))"
    r"|(?<![A-Za-z])(?:[NSEW]\.?|[NS]\.?[EW]\.?|North|South|East|West)(?![A-Za-z])"
    r"|[0-9](?:st|nd|rd|th|ST|ND|RD|TH)(?![A-Za-z])"
)
_OF_A_STREET = re.compile(_STREET_WORD)
_DIRECTION = re.compile("North|South|East|West")
_LARGE = re.compile("[0-9]{3,5}")
_OF_A_STREET_OR_UNIT = re.compile(rf"{_STREET_WORD}|(?<!\w){_UNIT}")
# Without a street suffix: a name, the end of its line, and a town.
_NAMED = re.compile(rf"{_APART}{_TOKEN}(?:[ ]{_TOKEN}){{0,6}}?[ \t]{{0,3}}+(?:[,;|·–—\n]|-[ ])(?:{_APART})?[A-Z]")
# Street and town without a mark between them, "1400 Smith Houston". Not if the first word may begin the name of a town,
# because then the number may count something ("3 West Palm Beach").
_RUN_ON = re.compile(r"[ ](?P<first>[A-Z][A-Za-z'’.-]{1,24})(?:[ ][A-Z][A-Za-z'’.-]{1,24}){1,3}[ ,]{1,3}\Z")
_AMERICAN_PLACE = re.compile(
    r"(?:New|North|South|East|West|San|Santa|Saint|Ste?\.?|Los|Las|La|El|Fort|Ft\.?|Mount|Mt\.?|Port|Point|Lake|Salt|Palm"
    r"|Long|Grand|Great|Little|Big|Cedar|Des|Baton|Colorado|Kansas|Oklahoma|Corpus|Ann|Boca|Coral|Daytona|Delray|Del|De"
    r"|Green|Grosse|High|Iowa|Jersey|Jefferson|Redondo|Silver|Sioux|Union|Walnut|White|Winston|Rapid|Rock|Round|Royal"
    r"|Sun|Terre|Thousand|Upper|Lower|Huntington|Garden|Elk|Eden|Bowling|Beverly|Battle|Overland|Newport|Myrtle|Carson"
    r"|Chapel|Cape|Council|Culver|Dodge|Old|Mission|Mountain|Palo|Rancho|Santa|College|Cherry|Forest|Oak)"
)
_COUNTED = re.compile(
    r"(?i:(?<![A-Za-z])(?:all|about|over|than|least|most|nearly|almost|some|the|these|those|other|only|first|last|next|top"
    r"|another|approximately|around|exactly|just|our|their|its|with|between|every) )\Z"
)
"""Words before a number that counts something."""
# From a house number to another number of the same street line: "998 East 900 South", "1 Kendall Square #143, ".
_STREET_BEFORE = re.compile(rf"[ ,]{{1,3}}+(?:{_TOKEN}[ ,\n]{{1,40}}+){{0,6}}+")

STREET = re.compile(
    rf"{NUMBER} (?:(?:[NSEW]{{1,2}}\.?|North|South|East|West) )?(?:[0-9]{{1,3}}(?:st|nd|rd|th)|{NAME})"
    rf" (?:(?:{_SHORT_TYPES})\b\.?|(?:{_TYPES})\b)(?: [NSEW]{{1,2}}\b\.?)?(?P<unit>{GAP}{_UNIT}\b)?"
    rf"(?P<town>{GAP}{NAME}{GAP}(?:{_CODES}|{_STATES}|{_PROVINCES})(?![\w-]))?"
)
"""A street line, matched forward; with a unit, or with a town and state, it is an address without further evidence."""


def find_american(text: str, starts: Iterable[int], countries: Sequence[str]) -> Iterator[PiiSpan]:
    r"""Yields the addresses of the United States and Canada whose postcode has its first digit at one of `starts`.

    `starts` are ascending.

    >>> text = "Send it to 450 West 31st Street, 15th Floor,\n   New York, NY 10001, please"
    >>> [text[a:b] for _, a, b, _ in find_american(text, [text.index("10001")], ["US"])]
    ['450 West 31st Street, 15th Floor,\n   New York, NY 10001']
    """
    floor = 0  # no address extends beyond the previous postcode, so the total time is linear
    for start in starts:
        code = _AMERICAN_POSTCODE.match(text, start)
        if code is None or ("CA" if code["CA"] else "US") not in countries:
            continue
        before = _PROVINCE_BEFORE if code["CA"] else _STATE_BEFORE
        state = before.search(text, max(floor, start - _STATE_LONGEST), start)
        if state is None:
            continue
        begin = _begin(text, max(floor, state.start() - _AMERICAN_LONGEST), state.start())
        if begin is not None:
            yield PiiSpan("address", begin, code.end(), Evidence.PATTERN)
        floor = code.end()


def _begin(text: str, first: int, end: int) -> int | None:
    """Returns the start of the address whose state begins at `end`; None if there is none after `first`."""
    # The replacements have the same lengths, so positions do not change.
    window = _LINE.sub(lambda match: "\n" + " " * (len(match.group()) - 1), text[first:end])
    houses = [
        house
        for house in _AMERICAN_HOUSE.finditer(window)
        if not _OF_A_UNIT.search(window, max(0, (at := house.start()) - 16), at)
    ]
    begin = None
    for house in reversed(houses[-_MOST_HOUSES:]):
        if begin is None:
            begin = house.start() if _is_address(window, house) else None
        elif _continues(window, house, begin):
            begin = house.start()
        else:
            break
    while begin and (unit := _UNIT_BEFORE.search(window, max(0, begin - 60), begin)):
        begin = unit.start()
    return None if begin is None else first + begin


def _is_address(window: str, house: re.Match[str]) -> bool:
    """Returns whether the text from a house number to the end of the window consists of a street and a town."""
    at = house.end()
    if _STRETCH.fullmatch(window, at) is None:
        return False
    if house["box"]:
        return True
    run_on = _RUN_ON.match(window, at)
    if run_on and not _AMERICAN_PLACE.fullmatch(run_on["first"]) and _is_large(window, house):
        return True
    # The last name before the state is the town.
    last = len(window.rstrip(" \t\n,;"))
    street_end = max(at, *(window.rfind(gap, at, last) for gap in " \n,"))
    directed = run_on.end("first") if run_on and _DIRECTION.fullmatch(run_on["first"]) else 0
    if _OF_A_STREET_OR_UNIT.search(window, directed or at, street_end):
        return True
    if directed:
        return _is_large(window, house)
    return not _YEAR.match(house.group()) and _NAMED.match(window, at) is not None


def _is_large(window: str, house: re.Match[str]) -> bool:
    """Returns whether a number is large enough for a house number, and neither a year nor a count."""
    number = house.group()
    if _COUNTED.search(window, max(0, house.start() - 16), house.start()):
        return False
    return _LARGE.fullmatch(number) is not None and not _YEAR.match(number)


def _continues(window: str, house: re.Match[str], end: int) -> bool:
    """Returns whether a house number and the text up to `end` belong to the same address."""
    if _STREET_BEFORE.fullmatch(window, house.end(), end) is None:
        return False
    return _OF_A_STREET.search(window, house.end(), end) is not None


_LABELS = Labels(
    r"address|liv(?:es?|ed|ing) (?:at|in|on)|resid(?:es|ed|ing|ence|ents? (?:of|at))|located at|ship(?:ped|ping)? to"
    r"|deliver|mail(?:ing)?\b|homes?\b|house\b|households?\b|apartment|flat (?:at|in)|moved (?:in)?to"
    r"|stay(?:s|ed|ing) at|born at|died at|(?:found|arrested|shot|killed) (?:dead )?at|visit us|office"
    r"|adresse|anschrift|wohnhaft|wohnt|lieferung|domicili|demeurant|habite|résidant|livr",
    r"chapter|page|figure|table|section|white house|opera house|house of",
)
# A residence, as in newspapers and registers: "Jo Doe, 34, of 12 Elm Street".
_PERSON_OF = re.compile(r"(?:[^\W\d_]|[0-9]{2}), (?:formerly |late )?of \Z")
_LOOK_BACK = 60
_LONGEST = 130


def find_addresses(text: str, starts: Sequence[int], countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields the addresses whose house number or postcode is at one of `starts`; matches may overlap.

    >>> text = "Ship to 123 Elm Street, Apt 45, Springfield, IL 62704 today"
    >>> sorted({text[a:b] for _, a, b, _ in find_addresses(text, [8, 48], ["US"])})
    ['123 Elm Street, Apt 45, Springfield, IL', '123 Elm Street, Apt 45, Springfield, IL 62704']
    """
    american = "US" in countries or "CA" in countries
    if american:
        yield from find_american(text, starts, countries)
    for start in starts:
        house = HOUSES.match(text, start)
        if house is None:
            continue
        form = house.lastgroup
        if form == "DE":
            for country in STREET_BEFORE:
                if country in countries:
                    yield from _street_first(text, start, country)
        if form == "FR" and "FR" in countries:
            yield from _street(text, start, FR)
        if american:
            yield from _street(text, start, STREET)
        if "GB" in countries and POSTCODE_HINT.search(text, start + 1, start + _LONGEST):
            yield from _british(text, start)


# "1 University of Exeter, Exeter, EX4 4QL": the mark of a footnote and the institution of an author, not a house. A
# street may be named after one: "1 University Road".
_INSTITUTION = re.compile(
    r"[0-9]{1,2}[A-Za-z]?,?[ ](?:[^\W\d_][\w'’&.-]{0,40}+,?[ ]){0,5}?(?:University|Universities|Department"
    r"|Dept|Institute|Faculty|Laboratory|Laboratories|Hospital|School|College|Academy|Centre|Center|Division|Unit|Group)(?!\w)"
    rf"(?!(?:[ ][{_UP}][\w'’-]{{0,30}}+){{0,2}}?[ ](?:{_SHORT_TYPES}|{_TYPES})(?!\w))"
)


def _british(text: str, start: int) -> Iterator[PiiSpan]:
    code = GB_CODE.search(text, start, start + _LONGEST)
    if _INSTITUTION.match(text, start):
        return
    if code and (match := GB.fullmatch(text, start, code.end())):
        flat = GB_FLAT_BEFORE.search(text, max(0, start - _LOOK_BACK), start)
        yield PiiSpan("address", flat.start() if flat else start, match.end(), Evidence.PATTERN)


def _street(text: str, start: int, form: re.Pattern[str]) -> Iterator[PiiSpan]:
    match = form.match(text, start)
    if match is None:
        return
    if match["town"] or match.groupdict().get("unit"):
        yield PiiSpan("address", start, match.end(), Evidence.PATTERN)
    elif _LABELS.of(text, start, match.end()) or _PERSON_OF.search(text, max(0, start - 20), start):
        yield PiiSpan("address", start, match.end(), Evidence.CONTEXT)


def _street_first(text: str, start: int, country: str) -> Iterator[PiiSpan]:
    match = TAIL[country].match(text, start)
    street = STREET_BEFORE[country].search(text, max(0, start - _LOOK_BACK), start) if match else None
    if match is None or street is None:
        return
    if match["town"]:
        yield PiiSpan("address", street.start(), match.end(), Evidence.PATTERN)
    elif _LABELS.of(text, street.start(), match.end()):
        yield PiiSpan("address", street.start(), match.end(), Evidence.CONTEXT)
