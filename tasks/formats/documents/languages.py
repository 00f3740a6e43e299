"""Names of languages, by the codes that the annotator `language` gives documents: for pages and reports.

English names of the Unicode CLDR (by Babel 2.18, which the tests compare them with) for all codes of lid.176 and of ISO
639-1; for thirteen codes without a name there, those of ISO 639-3, or of the Wikipedia whose code it is (`als`,
Alemannic). A table, because Babel (31 MB) comes with Airflow only, and workers and trainers have none.
"""

import re
from functools import lru_cache

_LANGUAGES = (
    "aa Afar; ab Abkhazian; ae Avestan; af Afrikaans; ak Akan; als Alemannic; am Amharic; an Aragonese; ar Arabic; "
    "arz Egyptian Arabic; as Assamese; ast Asturian; av Avaric; ay Aymara; az Azerbaijani; azb South Azerbaijani; ba "
    "Bashkir; bar Bavarian; bcl Central Bikol; be Belarusian; bg Bulgarian; bh Bihari; bi Bislama; bm Bambara; bn "
    "Bangla; bo Tibetan; bpy Bishnupriya; br Breton; bs Bosnian; bxr Russia Buriat; ca Catalan; cbk Chavacano; ce "
    "Chechen; ceb Cebuano; ch Chamorro; ckb Central Kurdish; co Corsican; cr Cree; cs Czech; cu Church Slavic; cv "
    "Chuvash; cy Welsh; da Danish; de German; diq Dimli; dsb Lower Sorbian; dty Dotyali; dv Divehi; dz Dzongkha; ee "
    "Ewe; el Greek; eml Emiliano-Romagnolo; en English; eo Esperanto; es Spanish; et Estonian; eu Basque; fa Persian; "
    "ff Fula; fi Finnish; fj Fijian; fo Faroese; fr French; frr Northern Frisian; fy Western Frisian; ga Irish; gd "
    "Scottish Gaelic; gl Galician; gn Guarani; gom Goan Konkani; gu Gujarati; gv Manx; ha Hausa; he Hebrew; hi Hindi; "
    "hif Fiji Hindi; ho Hiri Motu; hr Croatian; hsb Upper Sorbian; ht Haitian Creole; hu Hungarian; hy Armenian; hz "
    "Herero; ia Interlingua; id Indonesian; ie Interlingue; ig Igbo; ii Sichuan Yi; ik Inupiaq; ilo Iloko; io Ido; is "
    "Icelandic; it Italian; iu Inuktitut; ja Japanese; jbo Lojban; jv Javanese; ka Georgian; kg Kongo; ki Kikuyu; kj "
    "Kuanyama; kk Kazakh; kl Kalaallisut; km Khmer; kn Kannada; ko Korean; kr Kanuri; krc Karachay-Balkar; ks "
    "Kashmiri; ku Kurdish; kv Komi; kw Cornish; ky Kyrgyz; la Latin; lb Luxembourgish; lez Lezghian; lg Ganda; li "
    "Limburgish; lmo Lombard; ln Lingala; lo Lao; lrc Northern Luri; lt Lithuanian; lu Luba-Katanga; lv Latvian; mai "
    "Maithili; mg Malagasy; mh Marshallese; mhr Meadow Mari; mi Māori; min Minangkabau; mk Macedonian; ml Malayalam; "
    "mn Mongolian; mr Marathi; mrj Western Mari; ms Malay; mt Maltese; mwl Mirandese; my Burmese; myv Erzya; mzn "
    "Mazanderani; na Nauru; nah Nahuatl; nap Neapolitan; nd North Ndebele; nds Low German; ne Nepali; new Newari; ng "
    "Ndonga; nl Dutch; nn Norwegian Nynorsk; no Norwegian; nr South Ndebele; nv Navajo; ny Nyanja; oc Occitan; oj "
    "Ojibwa; om Oromo; or Odia; os Ossetic; pa Punjabi; pam Pampanga; pfl Palatine German; pi Pali; pl Polish; pms "
    "Piedmontese; pnb Western Punjabi; ps Pashto; pt Portuguese; qu Quechua; rm Romansh; rn Rundi; ro Romanian; ru "
    "Russian; rue Rusyn; rw Kinyarwanda; sa Sanskrit; sah Yakut; sc Sardinian; scn Sicilian; sco Scots; sd Sindhi; se "
    "Northern Sami; sg Sango; sh Serbo-Croatian; si Sinhala; sk Slovak; sl Slovenian; sm Samoan; sn Shona; so Somali; "
    "sq Albanian; sr Serbian; ss Swati; st Southern Sotho; su Sundanese; sv Swedish; sw Swahili; ta Tamil; te Telugu; "
    "tg Tajik; th Thai; ti Tigrinya; tk Turkmen; tl Tagalog; tn Tswana; to Tongan; tr Turkish; ts Tsonga; tt Tatar; "
    "tw Twi; ty Tahitian; tyv Tuvinian; ug Uyghur; uk Ukrainian; ur Urdu; uz Uzbek; ve Venda; vec Venetian; vep Veps; "
    "vi Vietnamese; vls West Flemish; vo Volapük; wa Walloon; war Waray; wo Wolof; wuu Wu Chinese; xal Kalmyk; xh "
    "Xhosa; xmf Mingrelian; yi Yiddish; yo Yoruba; yue Cantonese; za Zhuang; zh Chinese; zu Zulu"
)

_SCRIPTS = (
    "Adlm Adlam; Arab Arabic; Armn Armenian; Beng Bangla; Bopo Bopomofo; Cans Canadian Aboriginal Syllabics; "
    "Cher Cherokee; Cyrl Cyrillic; Deva Devanagari; Ethi Ethiopic; Geor Georgian; Grek Greek; Gujr Gujarati; "
    "Guru Gurmukhi; Hang Hangul; Hani Han; Hans Simplified; Hant Traditional; Hebr Hebrew; Hira Hiragana; "
    "Java Javanese; Jpan Japanese; Kana Katakana; Khmr Khmer; Knda Kannada; Kore Korean; Laoo Lao; Latn Latin; "
    "Mlym Malayalam; Mong Mongolian; Mtei Meitei Mayek; Mymr Myanmar; Nkoo N’Ko; Olck Ol Chiki; Orya Odia; "
    "Sinh Sinhala; Syrc Syriac; Taml Tamil; Telu Telugu; Tfng Tifinagh; Thaa Thaana; Thai Thai; Tibt Tibetan; "
    "Vaii Vai; Yiii Yi"
)


def _table(entries: str) -> dict[str, str]:
    pairs = (entry.partition(" ") for entry in entries.split("; "))
    return {code: name for code, _, name in pairs}


NAMES = _table(_LANGUAGES)
"""English name of a language by its code: ISO 639-1, or ISO 639-3 for a language without one."""

SCRIPTS = _table(_SCRIPTS)
"""English name of a script by its code in ISO 15924."""

_NO_LANGUAGE = {"": "no text", "und": "undetermined", "unknown": "unknown"}
_TAGS = {"als": "gsw", "eml": "egl"}
"""BCP 47 tags of codes of lid.176 that are those of a Wikipedia: `als` would be Tosk Albanian."""
_TAG = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*+")


@lru_cache(1024)
def language_name(code: str) -> str:
    """Returns the name of a language with its code, for people; of an unknown code the code alone.

    >>> language_name("ja"), language_name("zh-Hant"), language_name("srp_Cyrl"), language_name("")
    ('Japanese (ja)', 'Chinese, Traditional (zh-Hant)', 'srp_Cyrl', 'no text')
    """
    if code in _NO_LANGUAGE:
        return _NO_LANGUAGE[code]
    language, *more = re.split("[-_]", code)
    if language not in NAMES:
        return code
    return f"{', '.join([NAMES[language], *(SCRIPTS.get(part, part) for part in more)])} ({code})"


@lru_cache(1024)
def language_tag(code: str) -> str:
    """Returns the BCP 47 tag of a language for the attribute `lang` of HTML, "" if there is none.

    Browsers choose by it the shapes of Han characters, which differ between Chinese and Japanese, and break lines of
    Thai. The direction of a text is that of its letters (`dir="auto"`), not of its label, which may be wrong.

    >>> language_tag("ja"), language_tag("zh_Hant"), language_tag("als-Latn"), language_tag("und")
    ('ja', 'zh-Hant', 'gsw-Latn', '')
    """
    language, *more = re.split("[-_]", code)
    tag = "-".join([_TAGS.get(language, language), *more])
    return tag if code not in _NO_LANGUAGE and _TAG.fullmatch(tag) else ""
