import hashlib

import numpy as np
import pytest
from datasketch import MinHash

from tasks.stages.dedup.pairs import jaccard
from tasks.stages.dedup.signatures import MinHasher, band_keys


def hashes(label: str, count: int) -> np.ndarray:
    raw = b"".join(hashlib.blake2b(f"{label} {index}".encode(), digest_size=8).digest() for index in range(count))
    return np.frombuffer(raw, dtype=np.uint64)


def sign(texts: list[np.ndarray], permutations: int = 128, seed: int = 1) -> np.ndarray:
    return MinHasher(permutations, seed).signatures(np.concatenate(texts), np.array([len(text) for text in texts]))


def test_signatures_equal_those_of_datasketch() -> None:
    texts = [hashes("short", 1), hashes("a", 700), hashes("long", 150_000), hashes("b", 3)]
    made = sign(texts, 128, seed=7)
    for text, signature in zip(texts, made, strict=True):
        theirs = MinHash(128, seed=7, hashfunc=lambda value: int(value) >> 32)
        theirs.update_batch(text)
        assert np.array_equal(signature, theirs.hashvalues)


def test_the_share_of_equal_values_estimates_the_similarity_without_bias() -> None:
    errors = []
    for trial in range(200):
        common, left, right = (hashes(f"{trial} {side}", size) for side, size in (("c", 240), ("l", 30), ("r", 30)))
        one, two = sign([np.concatenate([common, left]), np.concatenate([common, right])])
        errors.append(np.mean(one == two) - 0.8)
    # One estimate has a standard deviation of sqrt(0.8 * 0.2 / 128) = 0.035, the mean of 200 of 0.0025.
    assert abs(np.mean(errors)) < 4 * 0.0025
    assert np.std(errors) == pytest.approx(0.0354, rel=0.25)


def test_a_signature_depends_neither_on_its_neighbours_nor_on_repeats() -> None:
    text = hashes("t", 500)
    alone = sign([text])
    among = sign([hashes("x", 90_000), np.tile(text, 3)[::-1], np.empty(0, np.uint64)])
    assert np.array_equal(alone[0], among[1])
    assert set(among[2]) == {np.iinfo(np.uint32).max}


def test_band_keys_are_equal_exactly_if_all_rows_of_the_band_are() -> None:
    one = sign([hashes("t", 50)], 32)
    two = one.copy()
    two[0, 9] ^= 1
    assert (band_keys(one, 4, 8) == band_keys(two, 4, 8)).tolist() == [[True, False, True, True]]
    swapped = one.copy()
    swapped[0, [0, 1]] = one[0, [1, 0]]
    assert not (band_keys(one, 4, 8) == band_keys(swapped, 4, 8))[0, 0]


@pytest.mark.parametrize(
    ("left", "right", "share"),
    [
        ([1, 2, 3], [2, 3, 4], 0.5),
        ([1], [2], 0.0),
        ([], [1], 0.0),
        ([], [], 0.0),
        ([7, 9], [7, 9], 1.0),
        ([9], [1, 3], 0),
    ],
)
def test_jaccard_is_the_intersection_over_the_union(left: list[int], right: list[int], share: float) -> None:
    assert jaccard(np.array(left, np.uint64), np.array(right, np.uint64)) == share
    assert jaccard(np.array(right, np.uint64), np.array(left, np.uint64)) == share
