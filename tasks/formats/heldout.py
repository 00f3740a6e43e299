"""What is held out of learning: drawn by a hash, the same in every version, in pretraining and in fine-tuning.

Of the same keys a larger share holds out all that a smaller one does.
"""

from tasks.formats.documents.text import hash64

_RANGE = 2**64


def heldout_draw(key: str) -> int:
    """Returns a uniform 64-bit integer of a key, such as a document's id; what is below some limit is held out."""
    return hash64(f"heldout/{key}")


def is_heldout(key: str, share: float) -> bool:
    """Returns whether a key is among the share that is held out."""
    return heldout_draw(key) < round(share * _RANGE)
