"""Words of scripts without spaces: speed by language, and agreement with the tokenizers that FineWeb2 uses.

    python -m benchmarks.words --langid FOLDER --kinds FOLDER [--rounds 5]

FOLDER of `--langid` has `udhr_sentences.jsonl.zst` (the Universal Declaration of Human Rights; fields `lang`, `text`),
that of `--kinds` `pages.jsonl.zst` (pages with their main text; fields `lang`, `gold`).

Speed: `tasks.formats.documents.words.spaced` on texts of each language repeated to 1 MB, in MB of UTF-8 per CPU-second
of one thread, best of the rounds. English, Russian and Korean show what texts without these scripts pay.

Agreement: precision, recall and F1 of the boundaries between two letters of these scripts against jieba for Chinese,
fugashi with UniDic Lite for Japanese, and PyThaiNLP's `newmm` for Thai, which are in an environment of their own
(`.sluice/benchmarks/words`, created on the first run). None of them is the truth: they disagree with each other about
as much. `letters` is the F1 of a boundary after every letter.

Writes `words.json`.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import json_lines, keep, last_line, least, parser, peer_python, spent
from tasks.formats.documents.words import UNSPACED, WORDS, spaced, words

PEERS = ("jieba==0.42.1", "fugashi==1.5.2", "unidic-lite==1.0.8", "pythainlp==5.4.0")
PEER_OF = {"zh": "jieba", "ja": "fugashi", "th": "newmm"}
LANGUAGES = ("zh", "ja", "th", "lo", "km", "my", "bo", "ko", "ru", "en")
_MB = 1_000_000
_LETTER = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED)
_RUN = re.compile(f"[{_LETTER}]+")

_PEER = """
import json, sys
given = json.load(open(sys.argv[1]))
import fugashi, jieba, logging
from pythainlp import word_tokenize
jieba.setLogLevel(logging.ERROR)
tagger = fugashi.Tagger()
cut = {
    "zh": lambda text: list(jieba.cut(text)),
    "ja": lambda text: [word.surface for word in tagger(text)],
    "th": lambda text: word_tokenize(text, engine="newmm"),
}
print(json.dumps({language: [cut[language](text) for text in texts] for language, texts in given.items()}))
"""


def texts_by_language(langid: Path, kinds: Path) -> dict[str, list[str]]:
    """Returns the sentences and main texts of each language of LANGUAGES."""
    found: dict[str, list[str]] = {language: [] for language in LANGUAGES}
    for row in json_lines(langid / "udhr_sentences.jsonl.zst"):
        if row["lang"] in found:
            found[row["lang"]].append(row["text"])
    for row in json_lines(kinds / "pages.jsonl.zst"):
        if row["lang"] in found and row.get("gold"):
            found[row["lang"]].append(row["gold"])
    return found


def speed(texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Returns MB per CPU-second, and code points without spaces per word."""
    text = "\n".join(texts)[:_MB]
    size = len(text.encode())
    repeated = [text] * max(1, _MB // size)
    seconds = least({"": lambda: spent(lambda: [spaced(one) for one in repeated])}, rounds)[""]
    letters = sum(map(len, text.split()))
    return {
        "mb_per_cpu_s": round(size * len(repeated) / _MB / seconds, 1),
        "chars_per_word": round(letters / len(words(text)), 2),
    }


def boundaries(parts: Sequence[str]) -> set[int]:
    """Returns the places, in letters without white space, at which words end."""
    ends: set[int] = set()
    at = 0
    for part in parts:
        at += len("".join(part.split()))
        ends.add(at)
    return ends


def agreement(texts: Sequence[str], by_peer: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns precision, recall and F1 of our boundaries between two letters of these scripts."""
    common = ours = theirs = places = 0
    for text, parts in zip(texts, by_peer, strict=True):
        inside = {at for run in _RUN.finditer("".join(text.split())) for at in range(run.start() + 1, run.end())}
        own, other = boundaries(words(text)) & inside, boundaries(parts) & inside
        common, ours, theirs = common + len(own & other), ours + len(own), theirs + len(other)
        places += len(inside)
    precision, recall, chance = common / ours, common / theirs, theirs / places
    return {
        "boundaries": theirs,
        "precision": round(precision, 3),
        "recall": round(recall, 3),
        "f1": round(2 * common / (ours + theirs), 3),
        "letters": round(2 * chance / (1 + chance), 3),
    }


def main() -> None:
    """Measures and writes the result."""
    options = parser(__doc__)
    options.add_argument("--langid", type=Path, required=True, help="folder with udhr_sentences.jsonl.zst")
    options.add_argument("--kinds", type=Path, required=True, help="folder with pages.jsonl.zst")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    texts = texts_by_language(given.langid, given.kinds)
    compared = {language: texts[language] for language in PEER_OF}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(compared, file)
        file.flush()
        by_peer: dict[str, Any] = json.loads(last_line(peer_python("words", PEERS), _PEER, file.name))
    result = {
        "segmentation": WORDS,
        "peers": list(PEERS),
        "speed": {language: speed(of, given.rounds) for language, of in texts.items() if of},
        "agreement": {
            language: {"peer": PEER_OF[language], **agreement(of, by_peer[language])}
            for language, of in compared.items()
        },
    }
    keep("words", result)


if __name__ == "__main__":
    main()
