"""Language codes: mapping from the labels of language identification models to ISO 639 codes.

Here a language has its ISO 639-1 code ("en") where there is one, else its ISO 639-3 code ("ceb"), as the labels of
lid.176 are. NLLB, OpenLID and GlotLID label by ISO 639-3 and ISO 15924 ("eng_Latn"), and split what ISO 639-1 has as
one language ("cmn", "arb", "zsm").

Sources: the code tables of ISO 639-3 (SIL International), with its macrolanguages.
"""

import re
from functools import cache

UNDETERMINED = "und"
"""The language of a text of which none is known: BCP 47's code, and ISO 639-2's."""

_SCRIPTED = re.compile("([a-z]{3})_[A-Z][a-z]{3}")

# ISO 639-3 and 639-1; of Norwegian in general Bokmål has the code.
_TWO_LETTERS = (
    "aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av ave:ae aym:ay aze:az bak:ba bam:bm bel:be ben:bn "
    "bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu chv:cv cor:kw cos:co cre:cr cym:cy dan:da "
    "deu:de div:dv dzo:dz ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy ful:ff "
    "gla:gd gle:ga glg:gl glv:gv grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy "
    "ibo:ig ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv jpn:ja kal:kl kan:kn kas:ks kat:ka "
    "kau:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku lao:lo lat:la lav:lv lim:li lin:ln "
    "lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml mar:mr mkd:mk mlg:mg mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv "
    "nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn nob:no nor:no nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pli:pi "
    "pol:pl por:pt pus:ps que:qu roh:rm ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm sna:sn "
    "snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv tah:ty tam:ta tat:tt tel:te tgk:tg "
    "tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzb:uz ven:ve vie:vi vol:vo "
    "wln:wa wol:wo xho:xh yid:yi yor:yo zha:za zho:zh zul:zu"
)
# Single languages of what ISO 639-1 has as one.
_MEMBERS = (
    "cmn:zh arb:ar zsm:ms pes:fa prs:fa lvs:lv ekk:et als:sq swh:sw npi:ne ory:or uzn:uz khk:mn azj:az plt:mg ydd:yi "
    "gaz:om quy:qu kmr:ku pbt:ps ayr:ay knc:kr fuv:ff gug:gn fil:tl kpv:kv"
)


def code_of(label: str) -> str:
    """Returns this project's code for a model's label; a label of another form is a code already.

    >>> [code_of(label) for label in ("eng_Latn", "cmn_Hani", "ceb_Latn", "en", "ceb", "other")]
    ['en', 'zh', 'ceb', 'en', 'ceb', 'other']
    """
    scripted = _SCRIPTED.fullmatch(label)
    return _codes().get(scripted[1], scripted[1]) if scripted else label


@cache
def _codes() -> dict[str, str]:
    return dict(pair.split(":") for pair in f"{_TWO_LETTERS} {_MEMBERS}".split())
