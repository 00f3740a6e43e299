"""Features of the blocks of a page, for the trees of `blocks`.

Reads the blocks of `page_blocks`. Lengths, character classes, links and positions do not depend on language or site
(after Kohlschütter, Fankhauser, Nejdl, "Boilerplate Detection using Shallow Text Features", WSDM 2010). Class names are
weighted by the element's share of the page's words, so that a class with "comment" in its name on the whole page
differs from one on a box. All features are counts and quotients of counts, so every machine computes the same values.
"""

import functools
import re
from collections import Counter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tasks.stages.extract.page_blocks import GROUPS, TAG_NAMES, Blocks

Floats = NDArray[np.float64]
FeatureArray = NDArray[np.float32]
Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Keywords of boilerplate, comments and credits, in the languages of the training data: whole words, or with a star
# prefixes, of which the first five letters are compared.
_KEYWORD_LISTS = {
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
KEYWORD_FEATURES = (*(f"says_{name}" for name in _KEYWORD_LISTS), "says_date")
"""Names of the keyword features, in order."""
_BEGINNING = 5
_EXACT = {word: kind for kind, words in enumerate(_KEYWORD_LISTS.values()) for word in words.split() if word[-1] != "*"}
_BEGINS = {
    word[:_BEGINNING]: kind
    for kind, words in enumerate(_KEYWORD_LISTS.values())
    for word in words.split()
    if word[-1] == "*"
}
_MARKS = frozenset("©«»←→‹›")
_WORD_OR_MARK = re.compile(r"[^\W\d_]+|[©«»←→‹›]")
_ANY_DIGIT = re.compile(r"\d")  # a cheap check: every date has a digit, and few other blocks begin with one
_DATE = re.compile(
    r"\d{1,2}[./-]\s?\d{1,2}[./-]\s?(?:19|20)?\d\d|(?:19|20)\d\d-\d\d|\d{1,2}:\d\d"
    r"|\d{1,2}\.? (?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d"
)

LEVELS = 4
_OFFSETS = (-2, -1, 1, 2)
_OF_TEXT = (
    *("words", "length", "word_length", "sentences", "capitals", "digits", "commas", "bars", "signs", "all_upper"),
    *("ends_sentence", "ends_mark", "ends_colon", "begins_bullet", "begins_lower", "begins_quote"),
    *("in_title", "openings", "starts", "link_share", "links", "breaks", "images", "words_since_image", "layout"),
)
_OF_LEVEL = ("share", "link_share", "prose_share", "blocks", "mean_words", "before")
_OF_PLACE = (
    *("place", "index", "index_from_end", "words_before", "words_share", "before_prose", "behind_prose"),
    *("to_first_prose", "from_last_prose", "since_prose", "until_prose", "prose_before", "prose_behind"),
)
_OF_HEADING = ("since_h1", "words_since_h1", "h1_blocks", "since_heading", "words_since_heading", "heading_level")
_OF_LIKES = ("alike", "alike_words", "alike_link_share", "alike_prose", "alike_around", "alike_around_words")
_OF_NEAR = ("words", "link_share", "says", "same_parent")
COLUMNS = (
    *(*_OF_TEXT, *GROUPS, *KEYWORD_FEATURES, *(f"heading_{name}" for name in KEYWORD_FEATURES)),
    *(f"{name}_{level}" for level in range(LEVELS) for name in _OF_LEVEL),
    *(*_OF_PLACE, *_OF_HEADING, *_OF_LIKES, *(f"inside_{level}" for level in range(4))),
    *(f"{name}_at_{offset}" for offset in _OFFSETS for name in _OF_NEAR),
    *("near_prose_3", "near_link_share_3", "near_words_3", "near_prose_8"),
    *("page_blocks", "page_words", "page_prose_share", "page_link_share", "container_share"),
)
"""Names of the features, in order."""

_AT = {name: index for index, name in enumerate(COLUMNS)}
_GROUP_ROW, _KEYWORD_ROW, _HEADING_ROW = _AT[GROUPS[0]], _AT[KEYWORD_FEATURES[0]], _AT[f"heading_{KEYWORD_FEATURES[0]}"]
_H1 = GROUPS.index("tag_h1")
_LEVEL_OF = np.array([int(name[1]) if name in ("h1", "h2", "h3", "h4", "h5", "h6") else 0 for name in TAG_NAMES])
_WITHIN = np.array([name in ("p", "li", "blockquote") for name in TAG_NAMES])
_BODY = TAG_NAMES.index("body")
_PROSE, _UNLINKED, _LINKED, _FAR = 15, 0.3, 0.9, 1_000
_TITLE_WORDS, _OPENING, _HEAD, _SHORT, _START = 16, 8, 40, 40, 60
_NONE = 2.0

# Character classes; there are fewer than 16, so that a pair of classes is one byte.
_OTHER, _SPACE, _UPPER, _LOWER, _DIGIT, _COMMA, _END, _CLOSING, _BAR, _SIGN, _BULLET, _QUOTE, _COLON = range(13)
_HAN, _THAI = 13, 14  # letters of scripts that have no spaces between words, by the length of their words
# Estimates: words of ICU's dictionaries have 1.8 letters in Chinese, 2.5 in Japanese, 4.0 to 5.2 in Thai and its
# neighbors (`benchmarks.words`). The trees learned from the estimates, which cost nothing.
_HAN_PER_WORD, _THAI_PER_WORD = 2, 4
_UNSPACED = {
    _HAN: ((0x3005, 0x3007), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    _THAI: ((0x0E00, 0x0EFF), (0x0F40, 0x0FBC), (0x1000, 0x109F), (0x1780, 0x17D3)),
}
_PUNCTUATION = {
    _COMMA: ",，、،",
    _END: ".!?…。！？।۔؟።။។",
    _CLOSING: '"”’»)]」』）】》',
    _BAR: "|",
    _SIGN: "©@",
    _BULLET: "[(•-–—>*+",
    _QUOTE: "'“«‘„「",
    _COLON: ":：",
}
_LAST = 0xFFFF


def _character_kinds() -> NDArray[np.uint8]:
    kinds = np.zeros(_LAST + 1, np.uint8)
    # Above this range only some hundred letters have two cases; these and full-width letters count as caseless.
    for code in range(0x2000):
        letter = chr(code)
        kinds[code] = _SPACE * letter.isspace() + _UPPER * letter.isupper() + _LOWER * letter.islower()
    kinds[ord("0") : ord("9") + 1] = _DIGIT
    kinds[[*range(0x2000, 0x200E), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF]] = _SPACE
    for kind, ranges in _UNSPACED.items():
        for start, end in ranges:
            kinds[start : end + 1] = kind
    for kind, letters in _PUNCTUATION.items():
        kinds[[ord(letter) for letter in letters]] = kind
    return kinds


def _pair_counts() -> Numbers:
    """Returns for each pair of adjacent classes its increments of the twelve counts, of shape (256, 12).

    The counts are those of `_count_characters`: words, capitalized words, sentence ends, digits, commas, bars, signs,
    upper case, lower case, characters without spaces, and letters of each class of scripts without spaces.
    """
    pairs = np.zeros((16, 16, 12))
    pairs[_SPACE, :, 0] = 1  # a word begins
    pairs[_SPACE, [_SPACE, _HAN, _THAI], 0] = 0
    pairs[:, _HAN, 10] = pairs[:, _THAI, 11] = 1
    pairs[_SPACE, _UPPER, 1] = 1
    pairs[_END, [_SPACE, _CLOSING, _HAN], 2] = 1
    for column, kind in enumerate((_DIGIT, _COMMA, _BAR, _SIGN, _UPPER, _LOWER), 3):
        pairs[:, kind, column] = 1
    pairs[:, :, 9] = 1
    pairs[:, _SPACE, 9] = 0
    return pairs.reshape(256, 12).astype(np.int64)


_KINDS = _character_kinds()
# Many pairs have equal increments: the group of each pair, and the increments of each group.
_INCREMENTS, _CLASS = np.unique(_pair_counts(), axis=0, return_inverse=True)
_CLASS = _CLASS.ravel().astype(np.uint8)
_CLASSES = len(_INCREMENTS)
_MOST_AT_ONCE = 100_000


def features(page: Blocks, title: str) -> FeatureArray:
    """Returns the features of a page's blocks: float32 of shape (`COLUMNS`, blocks).

    Args:
        page: the blocks of the page.
        title: title of the page in lower case.
    """
    number = len(page)
    values = np.zeros((len(COLUMNS), number))
    _count_characters(page, values)
    words = values[_AT["words"]]
    values[_AT["link_share"]] = np.minimum(page.linked / np.maximum(values[_AT["length"]], 1), 1.0)
    values[_AT["links"]], values[_AT["breaks"]], values[_AT["images"]] = page.links, page.breaks, page.images
    values[_AT["layout"]] = page.layout
    link_share = values[_AT["link_share"]]
    prose = (link_share < _UNLINKED) & (values[_AT["ends_sentence"]] > 0) & (words >= _PROSE)
    _measure_texts(page, title, values)
    sums = np.zeros((4, number + 1))
    np.cumsum([words, words * link_share, words * prose, np.ones(number)], axis=1, out=sums[:, 1:])
    _measure_elements(page, sums, values)
    _measure_positions(words, prose, sums, values)
    _measure_headings(page, values)
    values[_AT["container_share"]] = _mark_container(page, words * prose, values)
    _measure_similar(page, prose, values)
    _measure_neighbors(page, sums, values)
    total = max(sums[0, -1], 1.0)
    for name, value in (("blocks", number), ("words", total), ("prose_share", sums[2, -1] / total)):
        values[_AT[f"page_{name}"]] = value
    values[_AT["page_link_share"]] = sums[1, -1] / total
    return values.astype(np.float32)


def _count_characters(page: Blocks, values: Floats) -> None:
    """Counts character classes and their transitions, by pairs of adjacent characters."""
    length = page.text_length
    ends = np.cumsum(length)
    kinds = _KINDS[page.text_codes]
    of_run = page.text_block
    first = np.append(True, of_run[1:] != of_run[:-1])  # runs
    before = np.empty_like(kinds)
    before[1:] = kinds[:-1]
    begins = (ends - length)[first]
    before[begins] = _SPACE
    number = len(page)
    pair = before * np.uint8(16) + kinds
    block = np.repeat(of_run, length)
    # Integers, because a product of floating-point matrices would start a thread per core.
    counts = (
        np.bincount(block * _CLASSES + _CLASS[pair], minlength=number * _CLASSES).reshape(-1, _CLASSES) @ _INCREMENTS
    )
    words, capitals, sentences, digits, commas, bars, signs, upper, lower, letters, han, thai = counts.T
    words = words + -(-han // _HAN_PER_WORD) - (-thai // _THAI_PER_WORD)
    visible = np.append(np.flatnonzero(kinds != _SPACE), 0)  # a block may consist of invisible characters
    bounds = np.searchsorted(block[visible[:-1]], np.arange(number + 1))
    start, stop = visible[bounds[:-1]], visible[bounds[1:] - 1]
    initial, mark = kinds[start], kinds[stop]
    last = np.where(mark == _CLOSING, kinds[visible[np.maximum(bounds[1:] - 2, bounds[:-1])]], mark)
    # The end of the last sentence of a block has no following character, so it is not in a pair.
    sentences = sentences + (mark == _END)
    divisor = np.maximum(words, 1)
    for name, column in (
        *(("words", words), ("length", letters), ("word_length", letters / divisor), ("sentences", sentences)),
        *(
            ("capitals", capitals / divisor),
            ("digits", digits / np.maximum(letters, 1)),
            ("commas", commas / divisor),
            ("bars", bars),
        ),
        *(("signs", signs > 0), ("all_upper", (upper > 0) & (lower == 0)), ("ends_sentence", last == _END)),
        *(("ends_mark", mark == _END), ("ends_colon", last == _COLON), ("begins_lower", initial == _LOWER)),
        ("begins_bullet", (initial == _BULLET) | (initial == _BAR)),
        ("begins_quote", (initial == _QUOTE) | (initial == _CLOSING)),
    ):
        values[_AT[name]] = column


def _measure_texts(page: Blocks, title: str, values: Floats) -> None:
    """Computes the features that need the text of blocks: of all blocks the beginning, of short blocks the text."""
    words = values[_AT["words"]]
    upto = np.cumsum(words) - words
    last = np.maximum.accumulate(np.where(page.images > 0, upto, -_FAR))
    values[_AT["words_since_image"]] = np.minimum(upto - last, _FAR)
    source = page.source
    heads = [source[at : at + _HEAD].strip() for at in page.begin.tolist()]
    starts = Counter(heads)
    values[_AT["starts"]] = [starts[head] for head in heads]
    openings = Counter([head[:_OPENING] for head in heads])
    values[_AT["openings"]] = [openings[head[:_OPENING]] for head in heads]
    short = np.flatnonzero((words <= _SHORT) & (values[_AT["link_share"]] < _LINKED)).tolist()
    texts = [page.text(index).lower() for index in short]
    if not short:
        return
    values[_KEYWORD_ROW : _KEYWORD_ROW + len(KEYWORD_FEATURES), short] = np.array(
        [_keyword_shares(text[:_START]) for text in texts]
    ).T
    in_title, lengths = _AT["in_title"], words.tolist()
    for index, text in zip(short, texts, strict=True):
        if lengths[index] <= _TITLE_WORDS:
            parts = text.split()
            values[in_title, index] = sum([part in title for part in parts]) / (len(parts) or 1)


def _measure_elements(page: Blocks, sums: Floats, values: Floats) -> None:
    """Computes the features of the elements around each block, and their groups."""
    contained = sums[:, page.last] - sums[:, page.first]
    total = max(sums[0, -1], 1.0)
    share = contained[0] / total
    rows = values[_GROUP_ROW : _GROUP_ROW + len(GROUPS)]
    rows[:] = _NONE
    _innermost(page, share, rows)
    words, linked, prose, count = contained
    divisor = np.maximum(words, 1)
    by_element = np.stack((share, linked / divisor, prose / divisor, count, words / np.maximum(count, 1), -page.first))
    index = np.arange(len(page))
    at = page.element
    for level in range(LEVELS):
        exists = at >= 0
        base = _AT[f"share_{level}"]
        of_level = by_element[:, at]
        of_level[5] += index
        of_level[:, ~exists] = -1
        values[base : base + len(_OF_LEVEL)] = of_level
        at = np.where(exists, page.parent[at], -1)


def _innermost(page: Blocks, share: Floats, rows: Floats) -> None:
    """Sets the share of the innermost element of each group around each block, which is the smallest share."""
    each = np.array([len(groups) for groups in page.groups], np.int64)
    group = np.fromiter(chain.from_iterable(page.groups), np.int64, each.sum())
    first, length, value = (np.repeat(of, each) for of in (page.first, page.last - page.first, share))
    if length.sum() > _MOST_AT_ONCE:  # an index array over all blocks of all elements would take too much memory
        for of, at, size, least in zip(group.tolist(), first.tolist(), length.tolist(), value.tolist(), strict=True):
            rows[of, at : at + size] = least  # outer elements come before inner ones
        return
    ends = np.cumsum(length)
    at = np.arange(length.sum()) + np.repeat(group * rows.shape[1] + first - (ends - length), length)
    flat = rows.reshape(-1)
    np.minimum.at(flat, at, np.repeat(value, length))


def _measure_positions(words: Floats, prose: Mask, sums: Floats, values: Floats) -> None:
    """Sets the positions of blocks in the page, and relative to the blocks of prose."""
    number = len(words)
    index = np.arange(number)
    places = np.flatnonzero(prose)
    first, last = (places[0], places[-1]) if len(places) else (0, number - 1)
    before, after = _previous(prose, -_FAR), _next(prose, number + _FAR)
    all_words, all_prose = max(sums[0, -1], 1.0), max(sums[2, -1], 1.0)
    base = _AT["place"]
    for row, column in enumerate(
        (
            *(index / number, index, number - 1 - index),
            *(sums[0, :-1] / all_words, words / all_words),
            *(index < first, index > last, np.maximum(first - index, 0), np.maximum(index - last, 0)),
            *(np.minimum(index - before, _FAR), np.minimum(after - index, _FAR)),
            *(sums[2, :-1] / all_prose, (all_prose - sums[2, 1:]) / all_prose),
        )
    ):
        values[base + row] = column


def _previous(mask: Mask, default: int) -> Numbers:
    """Returns for each block the index of the closest block before it in the mask, or the default."""
    last = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), default))
    return np.append(default, last[:-1])


def _next(mask: Mask, default: int) -> Numbers:
    """Returns for each block the index of the closest block after it in the mask, or the default."""
    first = np.minimum.accumulate(np.where(mask, np.arange(len(mask)), default)[::-1])[::-1]
    return np.append(first[1:], default)


def _measure_headings(page: Blocks, values: Floats) -> None:
    """Computes distances to the main heading and to the previous heading, and the keywords of the latter."""
    number = len(page)
    index = np.arange(number)
    upto = np.cumsum(values[_AT["words"]])
    h1 = values[_GROUP_ROW + _H1] < _NONE
    last_h1 = np.maximum.accumulate(np.where(h1, index, -1))
    next_h1 = np.minimum.accumulate(np.where(h1, index, number + _FAR)[::-1])[::-1]
    values[_AT["since_h1"]] = np.where(last_h1 >= 0, index - last_h1, -np.minimum(next_h1 - index, _FAR) - 1)
    values[_AT["words_since_h1"]] = np.where(last_h1 >= 0, upto - upto[last_h1], -1)
    values[_AT["h1_blocks"]] = h1.sum()
    names = np.array([*page.names, len(TAG_NAMES) - 1])
    level = _LEVEL_OF[names[page.element]]
    previous = _previous(level > 0, -1)
    exists = previous >= 0
    values[_AT["since_heading"]] = np.where(exists, index - previous, _FAR)
    values[_AT["words_since_heading"]] = np.where(exists, upto - upto[previous], _FAR)
    values[_AT["heading_level"]] = np.where(exists, level[previous], 0)
    keywords = values[_KEYWORD_ROW : _KEYWORD_ROW + len(KEYWORD_FEATURES)]
    values[_HEADING_ROW : _HEADING_ROW + len(KEYWORD_FEATURES)] = np.where(exists, keywords[:, previous], 0)


def _mark_container(page: Blocks, prose: Floats, values: Floats) -> float:
    """Sets whether blocks are before, in or after the element with most prose, and the three elements around it.

    Returns:
        the share of that element in the prose of the page.
    """
    names = np.array([*page.names, len(TAG_NAMES) - 1])
    parents = np.append(page.parent, -1)
    at = page.element
    at = np.where(_WITHIN[names[at]], parents[at], at)
    prose_of = np.bincount(at + 1, prose, minlength=1)
    if not prose_of.any():
        return 0.0
    best = element = int(prose_of.argmax()) - 1
    for level in range(4):
        if element < 0 or names[element] == _BODY:
            break
        row = values[_AT[f"inside_{level}"]]
        row[page.first[element] : page.last[element]] = 1
        row[page.last[element] :] = 2
        element = int(page.parent[element])
    return float(prose_of[best + 1] / prose_of.sum())


def _measure_similar(page: Blocks, prose: Mask, values: Floats) -> None:
    """Computes features of the blocks in elements with the same start tag, such as list items and teasers."""
    of_tag: dict[str, int] = {}
    tags = np.array([*(of_tag.setdefault(tag, len(of_tag)) for tag in page.tags), len(of_tag)])
    own = tags[page.element]
    around = tags[np.append(page.parent, -1)[page.element]]
    words, link_share = values[_AT["words"]], values[_AT["link_share"]]
    count = np.bincount(own)
    divisor = np.maximum(count, 1)
    base = _AT["alike"]
    values[base] = count[own]
    for row, column in enumerate((words, link_share, prose), 1):
        values[base + row] = (np.bincount(own, column) / divisor)[own]
    _, pairs = np.unique(own * (len(of_tag) + 1) + around, return_inverse=True)
    count = np.bincount(pairs)
    values[base + 4] = count[pairs]
    values[base + 5] = (np.bincount(pairs, words) / count)[pairs]


def _measure_neighbors(page: Blocks, sums: Floats, values: Floats) -> None:
    """Sets the features of the blocks before and after each block."""
    number = len(page)
    around = np.append(page.parent, -1)[page.element]
    keywords = values[_KEYWORD_ROW : _KEYWORD_ROW + len(KEYWORD_FEATURES)].sum(axis=0)
    widest = max(_OFFSETS)
    padded = np.full((4, number + 2 * widest), -1.0)
    padded[:, widest : widest + number] = (values[_AT["words"]], values[_AT["link_share"]], keywords, around)
    for offset in _OFFSETS:
        base = _AT[f"words_at_{offset}"]
        shifted = padded[:, widest + offset : widest + offset + number]
        values[base : base + 3] = shifted[:3]
        values[base + 3] = shifted[3] == around
    index = np.arange(number)
    for width in (3, 8):
        near = sums[:, np.minimum(index + width + 1, number)] - sums[:, np.maximum(index - width, 0)]
        values[_AT[f"near_prose_{width}"]] = near[2]
        if width == 3:
            values[_AT["near_link_share_3"]] = near[1] / np.maximum(near[0], 1)
            values[_AT["near_words_3"]] = near[0]


_CONTEXT_OFFSETS = (-3, -2, -1, 1, 2, 3)
CONTEXT = (
    *("odds", *(f"odds_at_{offset}" for offset in _CONTEXT_OFFSETS), *(f"odds_around_{level}" for level in range(4))),
    *(f"kept_around_{level}" for level in range(4)),
    *("kept_before", "kept_behind", "since_kept", "until_kept", "kept_with_before", "kept_with_behind"),
    *("near_kept", "heading_odds", "page_kept", "page_sure", "mean_odds_alike"),
)
"""Names of the additional features of the second pass, which follow `COLUMNS`, in order."""
_MOST_ODDS, _MOST_AWAY = 6.0, 50


def context(page: Blocks, rows: FeatureArray, odds: Floats) -> FeatureArray:
    """Returns features of the predictions of the first pass around each block: float32 of shape (`CONTEXT`, blocks).

    Args:
        page: the blocks of the page.
        rows: their `features`.
        odds: log odds of the first pass that each block is main text.
    """
    number = len(page)
    at = {name: index for index, name in enumerate(CONTEXT)}
    values = np.zeros((len(CONTEXT), number))
    odds = np.minimum(np.maximum(odds, -_MOST_ODDS), _MOST_ODDS)
    is_main = odds > 0
    words = rows[_AT["words"]].astype(np.float64)
    values[0] = odds
    widest = max(_CONTEXT_OFFSETS)
    padded = np.full(number + 2 * widest, -_MOST_ODDS - 1)
    padded[widest : widest + number] = odds
    for row, offset in enumerate(_CONTEXT_OFFSETS, 1):
        values[row] = padded[widest + offset : widest + offset + number]
    weight = np.minimum(words, 50) + 1
    sums = np.zeros((4, number + 1))
    np.cumsum([weight, weight * odds, words, words * is_main], axis=1, out=sums[:, 1:])
    contained = sums[:, page.last] - sums[:, page.first]
    mean, main_share = contained[1] / np.maximum(contained[0], 1), contained[3] / np.maximum(contained[2], 1)
    element = page.element
    for level in range(4):
        exists = element >= 0
        values[at[f"odds_around_{level}"]] = np.where(exists, mean[element], -_MOST_ODDS)
        values[at[f"kept_around_{level}"]] = np.where(exists, main_share[element], -1)
        element = np.where(exists, page.parent[element], -1)
    main_words = max(sums[3, -1], 1.0)
    values[at["kept_before"]] = sums[3, :-1] / main_words
    values[at["kept_behind"]] = (sums[3, -1] - sums[3, 1:]) / main_words
    index = np.arange(number)
    before, after = _previous(is_main, -1), _next(is_main, number)
    values[at["since_kept"]] = np.where(before >= 0, np.minimum(index - before, _MOST_AWAY), _MOST_AWAY)
    values[at["until_kept"]] = np.where(after < number, np.minimum(after - index, _MOST_AWAY), _MOST_AWAY)
    around = np.append(page.parent, -1)[page.element]
    values[at["kept_with_before"]] = (before >= 0) & (around[before] == around)
    values[at["kept_with_behind"]] = (after < number) & (np.append(around, -2)[after] == around)
    values[at["near_kept"]] = sums[3, np.minimum(index + 9, number)] - sums[3, np.maximum(index - 8, 0)]
    since = rows[_AT["since_heading"]].astype(np.int64)
    values[at["heading_odds"]] = np.where(since < _FAR, odds[np.maximum(index - since, 0)], -_MOST_ODDS - 1)
    values[at["page_kept"]] = sums[3, -1] / max(sums[2, -1], 1.0)
    values[at["page_sure"]] = np.abs(odds).mean()
    names = np.append(np.array(page.names), -1)[page.element] + 1
    same = np.bincount(names, odds) / np.maximum(np.bincount(names), 1)
    values[at["mean_odds_alike"]] = same[names]
    return values.astype(np.float32)


@functools.lru_cache(1 << 14)
def _keyword_shares(start: str) -> tuple[float, ...]:
    """Returns the share of keywords of each kind at the start of a block, and whether it has a date.

    Args:
        start: the first `_START` characters of the block in lower case.
    """
    words = _WORD_OR_MARK.findall(start)
    counts = [0.0] * len(KEYWORD_FEATURES)
    for word in words:
        kind = _EXACT.get(word)
        if kind is None:
            kind = 0 if word in _MARKS else _BEGINS.get(word[:_BEGINNING])
        if kind is not None:
            counts[kind] += 1 / len(words)
    counts[-1] = float(_ANY_DIGIT.search(start) is not None and _DATE.search(start) is not None)
    return tuple(counts)
