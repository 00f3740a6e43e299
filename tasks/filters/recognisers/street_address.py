r"""Postal addresses in Chinese, Japanese, Korean, Russian and its neighbors, Arabic and Persian.

These seldom state the postcode beside the street. Evidence is a type of street with its number, and the province, city
or postcode in front; in Arabic a postcode behind, in Persian the word for the number of a plot. Each search is made
only in texts with a letter that its matches contain, examines a bounded number of characters, and its repetitions are
possessive or a few characters long.

Sources: the address formats of the Universal Postal Union (S42, "Postal addressing systems in member countries");
GB/T 2260 (provinces of China), Japan Post (prefectures), Road Name Address Act (Korea), Russian Post.
"""

import re
from collections.abc import Iterator, Sequence

from tasks.filters.recognisers.span import Evidence, Labels, PiiSpan

# China and Taiwan: a run of Chinese letters and digits that ends with a type of street, a number and 号.

_HAN = "\u3400-\u9fff"
_HAO = re.compile(rf"(?<=[{_HAN}])[0-9]{{1,5}}(?:[-之][0-9]{{1,4}})?[号號]")
_HAN_RUN = re.compile(rf"[{_HAN}0-9]{{4,40}}+\Z")
_CN_STREET = re.compile(
    "(?:路|街|道|巷|弄|胡同|里|村|园|區|区)(?:[0-9一二三四五六七八九十]{1,3}段)?(?:[0-9]{1,4}[巷弄]){0,2}\\Z"
)
_CN_CITY = re.compile("[市县縣区區州]")
# Behind 号: lines, exits, projects, documents, machines.
_CN_OTHER = re.compile(
    "线|線|工程|文|口|令|机|機|车|車|桥|橋|井|矿|礦|项目|項目|公告|公路|地块|地塊|标段|台风|選手|选手"
)
_CN_LABEL = re.compile(".*(?:地址|住址|位[于於]|住在|住所|居住[于於]|寄[到至]|坐落[于於]|通[讯訊]处)")
_CN_PROVINCE = re.compile(
    "北京|上海|天津|重[庆慶]|河北|山西|[辽遼][宁寧]|吉林|黑[龙龍]江|江[苏蘇]|浙江|安徽|福建|江西|山[东東]|河南|湖北|湖南|[广廣][东東]|海南|四川|[贵貴]州"
    "|[云雲]南|[陕陝]西|甘[肃肅]|青海|[内內]蒙古|[广廣]西|西藏|[宁寧]夏|新疆|香港|澳[门門]|[台臺](?:北|中|南|灣|湾|東)|新北|桃園|高雄|新竹|基隆|嘉義|彰化|屏東|花蓮|宜蘭"
)
_CN_MORE = re.compile(
    r"(?:[ ]?[0-9A-Za-z一二三四五六七八九十]{1,5}(?:号楼|號樓|楼|樓|座|室|栋|幢|棟|单元|層|层|号|號|之[0-9]{1,3})){0,4}"
    rf"(?:[{_HAN}]{{2,10}}(?:大厦|大廈|广场|廣場|中心)[0-9A-Za-z]{{0,5}}[座室楼层]?)?"
    rf"(?:[ ,，（(]{{0,2}}(?:邮编|郵編|邮政编码)?[:： ]?[0-9]{{6}}(?![0-9]))?"
)


def _chinese(text: str) -> Iterator[PiiSpan]:
    for number in _HAO.finditer(text):
        run = _HAN_RUN.search(text, max(0, number.start() - 40), number.start())
        street = _CN_STREET.search(run.group()) if run else None
        if run is None or street is None:
            continue
        names = run.group()[: street.start()]
        label = _CN_LABEL.match(names)
        at = label.end() if label else 0
        province = _CN_PROVINCE.search(names, at)
        city = _CN_CITY.search(names, at)
        if city is None or "的" in names[city.end() :] or _CN_OTHER.match(text, number.end()):
            continue
        # Without its province, a city has two or three letters.
        first = province.start() if province and province.start() < city.end() else max(at, city.start() - 3)
        first = max(first, names.rfind("的") + 1)
        more = _CN_MORE.match(text, number.end())
        yield PiiSpan("address", run.start() + first, more.end() if more else number.end(), Evidence.PATTERN)


_JP_LETTERS = "\u3041-\u30ff\u3400-\u9fff々ヶ"
_JP_PREFECTURES = (
    "東京都|北海道|京都府|大阪府|(?:青森|岩手|宮城|秋田|山形|福島|茨城|栃木|群馬|埼玉|千葉|神奈川|新潟|富山|石川|福井|山梨|長野|岐阜|静岡|愛知|三重"
    "|滋賀|兵庫|奈良|和歌山|鳥取|島根|岡山|広島|山口|徳島|香川|愛媛|高知|福岡|佐賀|長崎|熊本|大分|宮崎|鹿児島|沖縄)県"
)
_JP = re.compile(
    rf"(?:(?:〒[ \u3000]?[0-9]{{3}}-?[0-9]{{4}}[ \u3000\n]{{0,3}})(?:{_JP_PREFECTURES})?"
    rf"|(?:{_JP_PREFECTURES}))[ \u3000]?"
    # Behind a particle or before a counter, two numbers are a range or a score.
    rf"(?=[{_JP_LETTERS}]{{1,10}}[市区町村郡島])[{_JP_LETTERS}]{{2,24}}+(?<![でのはがにをとも約])[ \u3000]?[0-9]{{1,4}}"
    rf"(?:(?:丁目|番地?|号|[-の])(?:[0-9]{{1,4}})?){{1,5}}+"
    r"(?![ \u3000]?(?:[代年人対点勝敗回件個歳才倍円位割万億%％]|日(?!本)|月(?!島)|名(?![古取])"
    r"|時間|店舗|ヶ月|か月|カ月|週間|試合))"
    rf"(?:[ \u3000]?[{_JP_LETTERS}A-Z]{{1,15}}?(?:ビル|タワー|マンション|ハイツ|コーポ|荘)"
    rf"(?:[ \u3000]?[0-9]{{1,4}}(?:階|号室?|F)?)?)?"
)

_KR_PROVINCES = (
    "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청[북남]도|전라[북남]도|경상[북남]도"
    "|충북|충남|전북|전남|경북|경남|제주"
)
# "로" is also an ending ("버스로 10분", by bus in ten minutes); a building may follow the number after a blank.
_KR_COUNTER = (
    r"[명년개월원회연분초시일주대건배위차억만천백점세살인톤곳%]|k?m"
    r"|[ ](?:명|년|개월?|월|원|회|연|분|시간|일|건|배|위|차|억|만|천|점|세|살|톤|곳|킬로|미터|km|%)"
    r"(?:(?![가-힣])|[은는이가을를에의도과씩째간까정])"
)
_KR = re.compile(
    rf"(?:\(?우?편?번?호?\)?[ :]?[0-9]{{5}}\)?[ ])?(?:{_KR_PROVINCES})(?:특별자치시|특별자치도|특별시|광역시|시|도)?[ ]"
    r"(?:[가-힣]{1,5}(?:시|군|구)[ ]){0,2}(?:[가-힣]{1,5}(?:읍|면)[ ])?"
    r"(?:[가-힣0-9]{1,12}(?:로(?<!으로)|길)[ ]?(?:[0-9]{1,4}(?:번길|가길)[ ])?[0-9]{1,4}(?:-[0-9]{1,4})?+(?![0-9번])"
    rf"(?!{_KR_COUNTER})"
    r"|[가-힣0-9]{1,8}(?:동|리|가)[ ][0-9]{1,4}(?:-[0-9]{1,4})?번지)"
    r"(?:,?[ ](?:[0-9가-힣]{1,6}동[ ])?[0-9]{1,5}(?:층|호))?(?:[ ]?\([가-힣0-9, ]{2,25}\))?"
)

_RU_WORD = r"[А-ЯЁІЇЄҐ0-9][\w.-]{0,30}+"
_RU_TYPES = (
    r"ул\.?|улица|пр-?т\.?|просп\.|проспект|пр\.|пер\.|переулок|наб\.|набережная|бул\.|бульвар|б-р|шоссе|ш\.|пл\.|площадь"
    r"|проезд|вул\.|вулиця|бул\."
)
# Numbers that are no houses: "1905 года", "1905 г.", "10 лет".
_RU_YEAR = (
    r"[0-9]{1,4}(?:-?[а-я]{1,2})?[ ](?:год|гг|рок[уі]|рік|лет(?!\w)|век|тыс|млн|человек|чел\.|руб|метр|км)"
    r"|[12][0-9]{3}[ ]?г(?:\.|(?!\w))"
)
_RU = re.compile(
    rf"(?<!\w)(?:(?:{_RU_TYPES})[ ]?[«\"]?{_RU_WORD}(?:[ ](?!д\.|дом|к\.|стр)[\w.-]{{1,30}}+){{0,3}}?[»\"]?"
    rf"|[А-ЯЁ][а-яё-]{{2,30}}+(?<=[йая])[ ](?:{_RU_TYPES})),?[ ]{{1,2}}"
    rf"(?:(?:д(?:ом)?|буд(?:инок)?|№)\.?[ ]?№?[ ]?)?(?!{_RU_YEAR})"
    r"[0-9]{1,4}(?:[ ]?[А-Яа-я](?!\w))?(?:/[0-9]{1,4}[а-я]?)?"
    r"(?:,?[ ](?:корп(?:ус)?|к|кв|квартира|стр|строение|оф|офис|пом|комн?|эт|лит)\.?[ ]?[0-9А-Я]{1,5}(?!\w)){0,4}"
    r"(?P<after>,[ ](?:(?:г\.|м\.|город)[ ]?[А-ЯІЇЄ][а-яёіїє-]{2,20}|[0-9]{5,6}(?![0-9])))?(?![\w-])"
)
_RU_REGION = (
    r"(?:[А-ЯІЇЄ][\w.-]{2,30}+[ ](?:обл(?:асть)?|край|р-н|район|респ(?:ублика)?)\.?|Россия|РФ|Украина|Україна"
    r"|Беларусь|Казахстан)"
)
_RU_TOWN = (
    r"(?:(?:г\.|гор\.|город|м\.|с\.|п\.|пос\.|дер\.|ст\.)[ ]?[А-ЯІЇЄҐ][\w.-]{2,30}+|Москва|Санкт-Петербург|Киев"
    r"|Київ|Минск|Мінск|Алматы|Астана|[А-ЯІЇЄ][а-яёіїє-]{3,25}(?=,))"
)
_RU_BEFORE = re.compile(
    rf"(?:(?<![0-9])[0-9]{{5,6}},?[ ])?(?:{_RU_REGION},?[ ]){{0,3}}{_RU_TOWN},?[ ]\Z|(?<![0-9])[0-9]{{6}},[ ]\Z"
)
_RU_LABELS = Labels(r"адрес|прожив|прописан|зарегистрирован|мешкає|місце проживання|живёт|живет", "глава|раздел|пункт")

_ARABIC = "\u0620-\u065f\u0670-\u06d3"
_AR = re.compile(
    rf"(?:[0-9]{{1,5}}[ ،,]{{1,2}})?(?:شارع|طريق|جادة|خیابان|خيابان)[ ][{_ARABIC} ،,.\n-]{{3,70}}+"
    rf"(?:[0-9]{{1,4}}(?![0-9])[{_ARABIC} ،,.\n-]{{1,50}}+)?"
    rf"(?:(?<=پلاک[ ])[0-9]{{1,4}}|[0-9]{{5}}(?:[0-9]{{5}})?)(?![0-9])"
    rf"|(?:خیابان|خيابان)[ ][{_ARABIC} ،,.-]{{3,60}}+(?<=پلاک[ ])[0-9]{{1,4}}(?![0-9])"
)
_AR_AMOUNT_BEFORE = re.compile(
    r"(?:طوله|طولها|نحو|حوالي|حوالى|قرابة|زهاء|أكثر من|اكثر من|أقل من|عام|سنة|منذ|بلغ|يبلغ|مسافة|عدد|بنسبة"
    r"|سال|حدود|بیش از)[ ]\Z"
)
_AR_AMOUNT = re.compile(
    r" ?(?:كيلو|کیلو|كم|متر|مترا|زائر|شخص|نسمة|نفر|ريال|دولار|دينار|جنيه|درهم|ليرة|تومان|ریال|عام|سنة"
    r"|سال|ألف|مليون|هزار|میلیون|طن|سيارة|قدم|ميل|هكتار|مرة|%|٪)"
)
_AR_NOUN = re.compile(rf" ?[{_ARABIC}]")
_AR_NEAR = re.compile("[،,]|ص\\. ?ب|الرمز البريدي|کد ?پستی")
_AR_CLOSE = 40
"""Characters before the postcode among which a comma or its label stands, if another word follows it."""


def _arabic(text: str) -> Iterator[PiiSpan]:
    for found in _AR.finditer(text):
        digits = len(found.group()) - len(found.group().rstrip("0123456789"))
        code = found.end() - digits
        if not text[max(0, code - 6) : code].rstrip().endswith("پلاک"):
            if _AR_AMOUNT_BEFORE.search(text, max(0, code - 12), code) or _AR_AMOUNT.match(text, found.end()):
                continue
            near = _AR_NEAR.search(text, max(found.start(), code - _AR_CLOSE), code)
            if near is None and _AR_NOUN.match(text, found.end()):
                continue
        yield PiiSpan("address", *found.span(), Evidence.PATTERN)


# All bytes of UTF-8 except the first ones of U+0400 to U+1FFF and U+3000 to U+FFFF. A text that is left with none of
# these is Latin or Greek; this takes a fraction of a search of the many texts with accents and typographic marks.
_LATIN_BYTES = bytes(code for code in range(256) if not (0xD0 <= code <= 0xE1 or 0xE3 <= code <= 0xEF))


def find_by_street(text: str, countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields the addresses in scripts other than Latin, found by a type of street or a province.

    Each search is made only in texts with a letter that all its matches contain.

    >>> text = "地址：北京市朝阳区建国路88号。本社 〒100-0001 東京都千代田区千代田1-1"
    >>> [text[a:b] for _, a, b, _ in find_by_street(text, ["CN", "JP"])]
    ['北京市朝阳区建国路88号', '〒100-0001 東京都千代田区千代田1-1']
    """
    if text.isascii() or not text.encode("utf-8", "surrogatepass").translate(None, _LATIN_BYTES):
        return
    if ("号" in text or "號" in text) and not {"CN", "TW"}.isdisjoint(countries):
        yield from _chinese(text)
    if "JP" in countries and any(mark in text for mark in ("〒", "県", "都", "府", "北海道")):
        yield from (PiiSpan("address", *found.span(), Evidence.PATTERN) for found in _JP.finditer(text))
    if "KR" in countries and any(mark in text for mark in "로길동리"):
        yield from (PiiSpan("address", *found.span(), Evidence.PATTERN) for found in _KR.finditer(text))
    if any(mark in text for mark in "упш") and not {"RU", "UA", "BY", "KZ"}.isdisjoint(countries):
        yield from _russian(text)
    if ("شارع" in text or "طريق" in text or "خیابان" in text) and not {"SA", "EG", "AE", "MA", "IQ", "IR"}.isdisjoint(
        countries
    ):
        yield from _arabic(text)


def _russian(text: str) -> Iterator[PiiSpan]:
    for street in _RU.finditer(text):
        before = _RU_BEFORE.search(text, max(0, street.start() - 100), street.start())
        first = before.start() if before else street.start()
        if before or street["after"]:
            yield PiiSpan("address", first, street.end(), Evidence.PATTERN)
        elif _RU_LABELS.of(text, street.start(), street.end()):
            yield PiiSpan("address", first, street.end(), Evidence.CONTEXT)
