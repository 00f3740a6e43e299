"""Training of a unigram tokenizer: the vocabulary under which a text has the most probable tokens.

Reads texts; returns a tokenizer in the format of `tokenizers`. The vocabulary is that of SentencePiece's trainer
(Kudo 2018, arXiv 1804.10959): seeds by a suffix array, probabilities by expectation maximization, pruning by the loss
of likelihood. The trainer of `tokenizers` sums in the order of a hash table, so that every run gives other bytes, and
takes two to three times as long.

The trainer gets the pieces of `tasks.formats.tokens.pieces` with their counts, so no token crosses a piece; its own
rules for scripts and digits, and its normalization, are off. Decoding is exact: a space is a space in the
vocabulary, and a character that is not in it becomes the bytes of its UTF-8 form. Entries that no text may contain
(end-of-text and the bytes) have a score below that of any way to write their characters.
"""

import importlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import ModuleType

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tasks.core.errors import InputError
from tasks.formats.tokens.pieces import GPT2_EXPRESSION, expression
from tasks.stages.tokens import TokenizerConfig

UNKNOWN = "<unk>"
"""The entry that the format requires for unknown characters; no text gets it, because bytes are used instead."""

_COVERAGE = 0.9995
"""Share of the sample's characters that are in the vocabulary, as SentencePiece advises for rich character sets."""

_LONGEST = 16
"""Maximum number of characters of an entry."""

_LONGEST_PIECE = 4096
"""Maximum number of characters of a piece that the trainer reads; longer ones are no words."""

_NEVER = -1e4
"""Logarithmic score of entries that no text may contain. A character costs at most about 25."""

_STAND_IN = 0xF0000
_CONTROLS = (*range(0x21), 0x7F)
"""Characters that the trainer treats specially, or that end its lines: it reads characters for private use instead."""


def train(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Trains the vocabulary; the end-of-text token has id 0, followed by the 256 bytes and the unknown token.

    Raises:
        InputError: sentencepiece is not installed, the trainer reads nothing of the texts, or they have more characters
            than the vocabulary has room for.
    """
    split = pre_tokenizers.Split(Regex(_expression(config)), "isolated")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    reserved = [config.end_of_text, *(f"<0x{byte:02X}>" for byte in range(256)), UNKNOWN]
    # Every ASCII character is an entry, so that texts can write the names of reserved entries with them.
    required = {*map(chr, range(0x80)), *config.end_of_text}
    pieces = _with_required(list(_pieces(counts, required, config)), required, config.vocab_size - len(reserved))
    vocabulary = [(entry, _NEVER) for entry in reserved]
    vocabulary += [(entry, score) for entry, score in pieces if entry not in reserved]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=len(reserved) - 1, byte_fallback=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(config.end_of_text, special=True, normalized=False)])
    return tokenizer


def _expression(config: TokenizerConfig) -> str:
    return GPT2_EXPRESSION if config.split == "gpt2" else expression(config.split, config.digits)


def _pieces(counts: Counter[str], required: Set[str], config: TokenizerConfig) -> Iterator[tuple[str, float]]:
    """Yields the entries that the trainer finds, with the logarithms of their probabilities, most probable first."""
    library, model = _library(), io.BytesIO()
    replaced = {code: chr(_STAND_IN + code) for code in _CONTROLS}
    private = {chr(_STAND_IN + code): chr(code) for code in _CONTROLS}
    read = sorted((piece, count) for piece, count in counts.items() if _is_read(piece))
    if not read:
        raise InputError(
            f"the sample has no text for a unigram vocabulary: pieces of more than {_LONGEST_PIECE:,} characters, and "
            "those with characters for private use, are not read",
            "check that the stages before keep documents with text, or raise sample_bytes",
        )
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=_lines(read, replaced),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size - 1,  # of the reserved entries, end-of-text is ours
            hard_vocab_limit=False,
            required_chars="".join(sorted(required)).translate(replaced),
            character_coverage=_COVERAGE,
            max_sentencepiece_length=_LONGEST,
            max_sentence_length=4 * _LONGEST_PIECE,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,
            split_by_number=False,
            num_threads=1,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"SentencePiece cannot train {config.vocab_size:,} entries: {str(error)[-200:]}",
            "use another vocab_size, or a larger sample",
        ) from None
    trained = library.SentencePieceProcessor(model_proto=model.getvalue())
    back = str.maketrans(private)
    for number in range(257, trained.get_piece_size()):
        yield trained.id_to_piece(number).translate(back), round(trained.get_score(number), 6)


def _with_required(pieces: Sequence[tuple[str, float]], required: Set[str], most: int) -> Sequence[tuple[str, float]]:
    """Returns the entries, at most so many, with the required characters; the least probable others make room for them.

    The trainer takes required characters only until its coverage is reached. If nearly every piece of a sample in ASCII
    occurs once, this is so after those that the sample has.
    """
    missing = sorted(required - {entry for entry, _ in pieces})
    if not missing:
        return pieces
    others = [entry for entry, _ in pieces if entry not in required]
    left_out = set(others[max(0, most - len(required)) :])
    kept = [(entry, score) for entry, score in pieces if entry not in left_out]
    lowest = min(score for _, score in pieces) - 1
    return [*kept, *((character, lowest) for character in missing)]


def _lines(counts: Iterable[tuple[str, int]], replaced: Mapping[int, str]) -> Iterator[str]:
    """Yields the lines that the trainer reads: a piece and its count.

    A piece that occurs more than once is in two lines that share its count, one of them with a space at its end. Seeds
    are strings that two different characters follow, and no line has anything after a piece: in one line, a whole word
    could become an entry only as the beginning of another one, and texts in Vietnamese would take half as many tokens
    again. The trainer cuts a line at a space before it counts, and pieces have stand-ins for theirs.
    """
    for piece, count in counts:
        written = piece.translate(replaced)
        yield f"{written}\t{count - count // 2}"
        if count > 1:
            yield f"{written} \t{count // 2}"


def _is_read(piece: str) -> bool:
    """Returns whether the trainer reads a piece; a character for private use would be taken for a stand-in."""
    return len(piece) <= _LONGEST_PIECE and max(piece) < chr(_STAND_IN)


def _library() -> ModuleType:
    try:
        return importlib.import_module("sentencepiece")
    except ImportError:
        raise InputError(
            "the package sentencepiece is not installed, and algorithm = unigram needs it",
            'install it: pip install "sluice[unigram]"',
        ) from None
