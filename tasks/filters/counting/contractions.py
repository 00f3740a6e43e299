"""Tokenizer exceptions of English: contractions, abbreviations and emoticons.

The lists are those of spaCy's tokenizer for English.
"""

from functools import cache


@cache
def specials() -> dict[str, list[str]]:
    """Returns the tokens of every exception."""
    table: dict[str, list[str]] = {}
    for words, endings in _CONTRACTIONS:
        for word in words.split():
            for ending in endings.split("|"):
                _add(table, [word, *ending.split()])
    for word in _WORDS_OF_THEIR_OWN.split():
        table.pop(word, None)
    table |= {one: [one] for one in (*_WHOLE.split(), *_FACES.split())}
    hours = [(str(hour), half) for hour in range(1, 13) for half in ("am", "pm", "a.m.", "p.m.")]
    return table | {hour + half: [hour, half] for hour, half in hours}


def _add(table: dict[str, list[str]], parts: list[str]) -> None:
    """Adds a contraction as it is written: with a capital, with a typographical apostrophe, and with none."""
    first, *rest = parts
    for begin in (first, first[0].upper() + first[1:]):
        for mark in ("'", "’"):
            written = [part.replace("'", mark) for part in (begin, *rest)]
            table["".join(written)] = written
        bare = [part.replace("'", "") for part in (begin, *rest)]
        table.setdefault("".join(bare), bare)


_ALL_ENDINGS = "'ll|'ll 've|'d|'d 've"
_CONTRACTIONS = (
    ("i you he she it we they", _ALL_ENDINGS),
    ("i", "'m|'m a"),
    ("i you we they", "'ve"),
    ("you we they", "'re"),
    ("he she it", "'s"),
    ("who what when where why how there that this", "'s"),
    ("who what when where why how there these those", "'re|'ve"),
    ("who what when where why how there that this these those", _ALL_ENDINGS),
    ("ca could do does did had may might must need ought sha should wo would", "n't|n't 've"),
    ("could might must should would", "'ve"),
    ("ai are is was were have has dare", "n't"),
    ("not", "'ve"),
    ("let", "'s"),
    ("how", "'d 'y"),
    ("y'", "all"),
    ("c'm", "on"),
    ("can", "not"),
    ("gon", "na"),
    ("got", "ta"),
)
# Without their apostrophe these are other words.
_WORDS_OF_THEIR_OWN = (
    "whore Whore lets Lets cmon Cmon Ill ill Its its Hell hell Shell shell Shed shed were Were Well well"
)
_WHOLE = (
    "' '' and/or w/o 're 's 'S 'd 'em em 'll ll 'nuff nuff 'bout 'cause 'Cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz ‘s ‘S ’em "
    "’re ’d ’ll ’bout ’cause ’Cause ’nuff ma'am Ma'am o'clock O'clock ma’am Ma’am o’clock O’clock "
    "doin' Doin' goin' Goin' lovin' Lovin' havin' Havin' nothin' Nothin' somethin' Somethin' nuthin' Nuthin' ol' Ol' "
    "doin’ Doin’ goin’ Goin’ lovin’ Lovin’ havin’ Havin’ nothin’ Nothin’ somethin’ Somethin’ nuthin’ Nuthin’ ol’ Ol’ "
    "Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. "
    "Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. "
    "Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. a.m. p.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. "
    "Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. C++ "
    'a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. p. q. r. s. t. u. v. w. x. y. z. ä. ö. ü. \\t \\n \\") <space>'
)
_FACES = (
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( "
    ":-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 :() "
    ">:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. "
    ";_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) "
    "(-_-) (._.) (>_<) (*_*) (¬_¬) ><(((*>"
)
