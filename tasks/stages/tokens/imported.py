"""Import of a tokenizer that was made elsewhere: `tokenizer.json` of Hugging Face.

Reads the file; returns its text as it is, if any text comes back from its tokens unchanged.
"""

from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.core.store import read_outside
from tasks.stages.tokens.encoder import PROBES, Reference


def read(path: str, end_of_text: str) -> str:
    """Returns the content of the file.

    Args:
        path: a local path or a URL of an object store.
        end_of_text: the token that ends a document.

    Raises:
        InputError: the file cannot be read or is no tokenizer, the tokenizer loses or changes text, its ids have gaps,
            or it has no such token.
    """
    try:
        text = read_outside(path).decode()
        tokenizer = Reference(text).tokenizer
    except OSError as error:
        raise InputError(f"[tokenizer] file: {path} cannot be read ({error})", "correct the path") from None
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InputError(
            f"[tokenizer] file: {path} is no tokenizer of Hugging Face ({str(error)[:200]})", "name a tokenizer.json"
        ) from None
    _check_ids(tokenizer, path)
    _check_end_of_text(tokenizer, path, end_of_text)
    _check_lossless(tokenizer, path)
    return text


def _check_ids(tokenizer: Tokenizer, path: str) -> None:
    size, last = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1)
    if last != size - 1:  # a model has a row for each of 0 .. size - 1
        raise InputError(
            f"[tokenizer] file: {path} has {size:,} entries and the ids up to {last:,}",
            "number the entries without a gap",
        )


def _check_end_of_text(tokenizer: Tokenizer, path: str, end_of_text: str) -> None:
    special = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
    if end_of_text not in special:
        # Encoding reads special tokens as plain characters; another entry could stand in a text.
        known = ", ".join(special[:10]) or "none"
        raise InputError(
            f"[tokenizer] file: {path} has no special token {end_of_text}",
            f"set [tokenizer] end_of_text; its special tokens are: {known}",
        )


def _check_lossless(tokenizer: Tokenizer, path: str) -> None:
    for text in PROBES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back != text:
            raise InputError(
                f"[tokenizer] file: {path} is not byte-level: {text[:40]!r} comes back as {back[:40]!r}",
                "name a tokenizer without normalizer whose pieces and decoder are byte-level, as of GPT-2 or Llama 3",
            )
