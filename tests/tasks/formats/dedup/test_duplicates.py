import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.dedup.duplicates import choose

TEXTS = st.lists(st.integers(0, 7), max_size=14)
PAIRS = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]), max_size=14)


@given(TEXTS, PAIRS)
def test_every_dropped_document_has_a_keeper_and_linked_texts_are_never_both_kept(
    texts: list[int], pairs: set[tuple[int, int]]
) -> None:
    linked = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    shares = np.linspace(0.8, 0.99, len(linked), dtype=np.float32)
    choice = choose(np.array(texts, dtype=np.int64), linked, shares)
    keeper = choice.keeper.tolist()
    stays = [position for position, kept in enumerate(keeper) if kept == position]
    similar = {pair: share for pair, share in zip(map(tuple, linked.tolist()), shares.tolist(), strict=True)}
    for position, kept in enumerate(keeper):
        assert kept in stays
        assert kept <= position
        if kept == position or texts[kept] == texts[position]:
            assert choice.jaccard[position] == 1.0
        else:
            pair = (min(texts[kept], texts[position]), max(texts[kept], texts[position]))
            assert choice.jaccard[position] == np.float32(similar[pair])
    for one in stays:
        for two in stays:
            assert one == two or texts[one] != texts[two]
            assert (texts[one], texts[two]) not in pairs


def test_the_most_preferred_of_several_keepers_is_recorded() -> None:
    # Texts 1 and 2 are kept, because nothing links them; 3 is nearer to 2, but 1 is preferred.
    choice = choose(np.array([1, 2, 3]), np.array([[2, 3], [1, 3]]), np.array([0.95, 0.85], np.float32))
    assert choice.keeper.tolist() == [0, 1, 0]
    assert choice.jaccard.tolist() == [1.0, 1.0, np.float32(0.85)]
