"""The order of sequences: a permutation per epoch, exact shares, an exact inverse, independent of ranks.

The keyed permutation shuffles like a random one: three statistics over many keys, compared with numpy's permutation.
Each is standard normal, or chi-square, under a permutation drawn at random; the sum of squares over the keys is
compared with the quantile that a true permutation exceeds once in 10,000 sets of keys. The keys are fixed, so that the
result is the same in every run.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.formats.tokens import shuffle
from tasks.formats.tokens.mixture import Anneal, grid_weights
from tasks.formats.tokens.order import VERSION, Order
from tasks.formats.tokens.shuffle import Permutation, Windows

WHOLE = Windows(1, 1, 10**9)
"""Every source is permuted one sequence at a time."""
WINDOWS = st.builds(Windows, st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.integers(1, 30))


def order_of(
    sequences: dict[str, int],
    weights: dict[str, float],
    batch_size: int,
    seed: int,
    anneal: Anneal | None = None,
    windows: Windows = WHOLE,
    ramp: Sequence[tuple[int, int]] = (),
) -> Order:
    return Order(sequences, weights, batch_size, seed, anneal, windows, ramp)


@st.composite
def weights(draw: st.DrawFn) -> dict[str, float]:
    # On a grid of 1/1000, which keeps a period short; one test below uses the full grid.
    cuts = sorted(draw(st.lists(st.integers(1, 999), max_size=5, unique=True)))
    names = draw(st.permutations([f"s{index}" for index in range(6)]))
    return {name: amount / 1000 for name, amount in zip(names, np.diff([0, *cuts, 1000]).tolist(), strict=False)}


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Orders of one stage and of two, whose sources may differ, of which some begin with smaller batches."""
    first, second = draw(weights()), draw(st.none() | weights())
    sequences = {f"s{index}": draw(st.integers(3, 40)) for index in range(6)}
    anneal = Anneal(from_step=draw(st.integers(1, 40)), weights=second) if second else None
    ramp = draw(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), max_size=2))
    return order_of(sequences, first, draw(st.integers(1, 9)), draw(st.integers(0, 5)), anneal, draw(WINDOWS), ramp)


@given(st.integers(1, 700), st.integers(0, 10**6), WINDOWS)
def test_a_permutation_has_every_item_once_and_an_inverse(n: int, key: int, windows: Windows) -> None:
    permutation = Permutation(n, str(key), windows)
    items = permutation.apply(np.arange(n))
    assert sorted(items.tolist()) == list(range(n))
    assert permutation.invert(items).tolist() == list(range(n))


@pytest.mark.parametrize("windows", [WHOLE, Windows.of(4096, 4096)])
def test_a_permutation_of_a_huge_range_has_an_inverse_and_stays_in_range(windows: Windows) -> None:
    n = 10**15 + 37
    positions = np.random.default_rng(0).integers(0, n, 5000)
    items = Permutation(n, "k", windows).apply(positions)
    assert items.min() >= 0
    assert items.max() < n
    assert np.array_equal(Permutation(n, "k", windows).invert(items), positions)


@pytest.mark.parametrize("n", [5, 8, 13])
def test_over_keys_every_item_is_first_equally_often(n: int) -> None:
    trials = 4000
    first = [int(Permutation(n, str(key), WHOLE).apply(np.array([0]))[0]) for key in range(trials)]
    expected = trials / n
    chi_square = sum((first.count(item) - expected) ** 2 / expected for item in range(n))
    # 1e-4 quantile of chi-square with n - 1 degrees of freedom, n - 1 + 4 sqrt(2 (n - 1)) + 10 bounds it from above
    assert chi_square < n - 1 + 4 * math.sqrt(2 * (n - 1)) + 10


def test_a_permutation_separates_neighbors() -> None:
    n = 10_000
    items = Permutation(n, "x", WHOLE).apply(np.arange(n))
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(np.arange(n), items)[0, 1]) < 0.04


@given(orders(), st.integers(1, 30))
@settings(max_examples=settings.default.max_examples // 2)
def test_steps_of_is_the_exact_inverse_of_batch(order: Order, steps: int) -> None:
    seen: dict[tuple[str, int], list[int]] = {}
    for step in range(steps):
        for source, sequence, epoch in sorted(order.batch(step), key=lambda one: one[2]):
            assert len(seen.setdefault((source, sequence), [])) == epoch
            seen[source, sequence].append(step)
    for source, size in order.sequences.items():
        for sequence in range(size):
            assert order.steps_of(source, sequence, steps) == sorted(set(seen.get((source, sequence), [])))


def test_a_step_that_reads_a_sequence_in_several_epochs_is_named_once() -> None:
    order = order_of({"web": 50, "code": 2}, {"web": 0.5, "code": 0.5}, 10, 0)
    assert [(source, epoch) for source, _, epoch in order.batch(0)].count(("code", 1)) == 2
    assert order.steps_of("code", 0, 4) == [0, 1, 2, 3]


@given(orders(), st.integers(0, 10**7))
def test_every_source_is_within_one_sequence_of_its_share(order: Order, steps: int) -> None:
    samples = order.slots_before(steps)
    assert sum(order.count_drawn(source, steps) for source in order.sequences) == samples
    boundary = min(order.anneal.from_step, steps) if order.anneal else steps
    for source, weight in order.weights.items():
        in_first = order.count_drawn(source, boundary)
        assert abs(in_first - round(weight * 100_000) * order.slots_before(boundary) / 100_000) < 1
        later = round(order.anneal.weights.get(source, 0) * 100_000) if order.anneal else 0
        in_second = order.count_drawn(source, steps) - in_first
        in_later_steps = samples - order.slots_before(boundary)
        assert abs(in_second - later * in_later_steps / 100_000) < 1


def test_odd_weights_of_many_sources_keep_their_shares_too() -> None:
    amounts = np.random.default_rng(1).dirichlet(np.full(20, 0.3))
    weights = grid_weights({f"s{index:02d}": float(amount) for index, amount in enumerate(amounts)})
    order = order_of(dict.fromkeys(weights, 50), weights, 7, 0)
    for steps in range(0, 30_000, 13):
        for source, weight in order.weights.items():
            assert abs(order.count_drawn(source, steps) - round(weight * 100_000) * steps * 7 / 100_000) < 1


@given(orders(), st.integers(0, 10**6))
@settings(max_examples=settings.default.max_examples // 2)
def test_a_batch_continues_the_totals(order: Order, step: int) -> None:
    sources = [source for source, _, _ in order.batch(step)]
    for source in order.sequences:
        assert sources.count(source) == order.count_drawn(source, step + 1) - order.count_drawn(source, step)


@given(orders(), st.integers(1, 60))
@settings(max_examples=settings.default.max_examples // 2)
def test_epochs_are_permutations_across_stages(order: Order, steps: int) -> None:
    read: dict[tuple[str, int], list[int]] = {}
    for step in range(steps):
        for source, sequence, epoch in order.batch(step):
            read.setdefault((source, epoch), []).append(sequence)
    for (source, epoch), found in read.items():
        whole = list(range(order.sequences[source]))
        if order.count_drawn(source, steps) >= (epoch + 1) * len(whole):
            assert sorted(found) == whole
        else:
            assert len(set(found)) == len(found)


def test_before_the_boundary_two_stages_read_the_same_sequences_as_one() -> None:
    sequences, broad, late = {"web": 90, "code": 40, "books": 30}, {"web": 0.7, "code": 0.3}, {"books": 0.6, "web": 0.4}
    one, two = order_of(sequences, broad, 8, 1), order_of(sequences, broad, 8, 1, Anneal(from_step=9, weights=late))
    assert [two.batch(step) for step in range(9)] == [one.batch(step) for step in range(9)]
    assert {source for source, _, _ in two.batch(9)} == {"books", "web"}
    read = [sequence for step in range(14) for source, sequence, _ in two.batch(step) if source == "web"]
    assert len(read) <= 90
    assert len(set(read)) == len(read), "the anneal does not begin web's epoch anew"


def test_a_batch_that_grows_reads_the_sequences_of_a_constant_one_in_the_same_order() -> None:
    sequences, mixture = {"web": 90, "code": 40}, {"web": 0.7, "code": 0.3}
    grown, constant = order_of(sequences, mixture, 8, 1, ramp=[(3, 2), (2, 4)]), order_of(sequences, mixture, 2, 1)
    sizes = [len(grown.batch(step)) for step in range(7)]
    assert sizes == [grown.size_of(step) for step in range(7)] == [2, 2, 2, 4, 4, 8, 8]
    assert [grown.slots_before(step) for step in (3, 5, 7)] == [6, 14, 30]
    in_order = [sorted(constant.batch(step)) for step in range(15)]
    assert sorted(one for step in range(7) for one in grown.batch(step)) == sorted(
        one for two in in_order for one in two
    )
    assert [sorted(grown.batch(step)) for step in range(3)] == in_order[:3]
    run = {"sequences": sequences, "weights": mixture, "batch_size": 8, "seed": 1, "seq_len": 2**20, "order": VERSION}
    read = Order.of_run(json.loads(json.dumps({**run, "ramp": [(3, 2), (2, 4)]})))
    assert [len(read.batch(step)) for step in range(7)] == sizes
    assert Order.sequences_of({**run, "steps": 7, "ramp": [(3, 2), (2, 4)]}) == 30


def test_the_order_of_a_run_is_read_from_its_description_of_one_stage_or_two() -> None:
    run: dict = {"sequences": {"web": 9, "code": 5}, "weights": {"web": 0.5, "code": 0.5}, "batch_size": 4, "seed": 3}
    run |= {"seq_len": 32, "order": VERSION}
    plain, late = Order.of_run(run), Anneal(from_step=2, weights={"code": 1.0})
    assert plain.batch(5) == order_of(run["sequences"], run["weights"], 4, 3).batch(5)
    staged = Order.of_run(json.loads(json.dumps({**run, "anneal": late.model_dump()})))
    assert staged.batch(1) == plain.batch(1)
    assert {source for source, _, _ in staged.batch(2)} == {"code"}
    with pytest.raises(InputError, match="order 1, and this Sluice knows"):
        Order.of_run({**run, "order": 1})


def test_an_epoch_reads_every_sequence_once_before_repeating_any() -> None:
    order = order_of({"a": 30}, {"a": 1.0}, 10, 3)
    epochs = [[seq for step in range(3 * e, 3 * e + 3) for _, seq, _ in order.batch(step)] for e in range(3)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_the_same_global_batches(ranks: int) -> None:
    def chain(world: int) -> str:
        order, digest = order_of({"web": 1000, "code": 77}, {"web": 0.7, "code": 0.3}, 12, 1), hashlib.sha256()
        for step in range(50):
            slots: list = [None] * 12
            for rank in range(world):
                slots[rank::world] = order.batch(step)[rank::world]
            digest.update(repr(slots).encode())
        return digest.hexdigest()

    assert chain(ranks) == chain(1)


def test_the_order_is_pinned_so_that_old_runs_stay_traceable() -> None:
    order = order_of({"web": 1000, "code": 7}, {"web": 0.75, "code": 0.25}, 4, 0)
    batches = repr([order.batch(step) for step in range(20)])
    assert hashlib.sha256(batches.encode()).hexdigest()[:16] == "bb370422279f2e1b"


def test_a_late_step_costs_no_more_than_the_first() -> None:
    order = order_of({"web": 10**9, "code": 10**6}, {"web": 0.9, "code": 0.1}, 64, 0)
    order.batch(0)
    started = time.process_time()
    source, sequence, _ = order.batch(10**9)[5]
    assert 10**9 in order.steps_of(source, sequence, 10**9 + 1)
    assert time.process_time() - started < 1


@given(orders(), st.integers(0, 10**6))
@settings(max_examples=settings.default.max_examples // 2)
def test_a_batch_permutes_each_source_and_epoch_by_its_key(order: Order, step: int) -> None:
    wanted = []
    for source, size in order.sequences.items():
        for draw in range(order.count_drawn(source, step), order.count_drawn(source, step + 1)):
            epoch, position = divmod(draw, size)
            permutation = Permutation(size, f"{order.seed}/{source}/{epoch}", order.windows)
            wanted.append((source, int(permutation.apply(np.array([position]))[0]), epoch))
    assert sorted(order.batch(step)) == sorted(wanted)


BLOCK, COLUMNS = 16, 64
LARGE = 20 * BLOCK * COLUMNS + 777


def test_few_blocks_of_neighbors_are_open_at_a_time_and_they_are_from_anywhere() -> None:
    items = Permutation(LARGE, "k", Windows(BLOCK, COLUMNS, 1)).apply(np.arange(LARGE))
    turns = items[: LARGE // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    # Neighbors, of which blocks begin anywhere, are read within twice as many turns as a block has sequences.
    turn_of = np.empty(LARGE, int)
    turn_of[items] = np.arange(LARGE) // COLUMNS
    apart = np.abs(np.diff(turn_of))
    assert np.mean(apart <= BLOCK) > 1 - 1.2 / BLOCK
    for turn in turns[10:300:29]:
        assert np.diff(np.sort(turn)).min() >= 1
        cells = np.bincount(turn * 8 // LARGE, minlength=8)
        assert cells.max() <= 4 * cells.mean(), "blocks from everywhere"
    opened = [len(set((items[: COLUMNS * turn] // BLOCK).tolist())) for turn in range(BLOCK, 15 * BLOCK, BLOCK)]
    assert max(np.diff(opened)) < 3 * COLUMNS, "blocks begin in all turns, not at the same time"


@pytest.mark.parametrize("ranks", [1, 4, 16])
def test_a_block_is_read_by_one_rank_of_a_single_source_and_by_few_of_several(ranks: int) -> None:
    windows = Windows(BLOCK, COLUMNS, 1)
    for weights, most in (({"web": 1.0}, 1.0), ({"web": 0.6, "code": 0.3, "books": 0.1}, 2.0)):
        order = order_of(dict.fromkeys(weights, LARGE), weights, 64, 0, None, windows)
        read = [(one[0], one[1], slot % ranks) for step in range(200) for slot, one in enumerate(order.batch(step))]
        for source in weights:
            sequences, readers = np.array([(sequence, rank) for name, sequence, rank in read if name == source]).T
            columns = Permutation(LARGE, f"0/{source}/0", windows).invert(sequences) % COLUMNS
            pairs = np.unique(columns * ranks + readers)
            assert len(pairs) / len(np.unique(columns)) <= most


def test_batches_do_not_depend_on_the_steps_read_before() -> None:
    sequences, weights = {"web": 1000, "code": 3}, {"web": 0.75, "code": 0.25}
    one = order_of(sequences, weights, 64, 0, Anneal(from_step=70, weights={"web": 1.0}))
    steps = np.random.default_rng(0).permutation(600).tolist()
    with ThreadPoolExecutor(4) as threads:
        batches = dict(zip(steps, threads.map(one.batch, steps), strict=True))
    other = order_of(sequences, weights, 64, 0, one.anneal)
    assert [batches[step] for step in range(600)] == [other.batch(step) for step in range(600)]


def test_successive_steps_share_the_calls_that_permute(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    mix = shuffle.mix
    monkeypatch.setattr(shuffle, "mix", lambda values: calls.append(len(values)) or mix(values))
    order = order_of({f"s{n:02d}": 100_000 for n in range(20)}, {f"s{n:02d}": 0.05 for n in range(20)}, 64, 0)
    for step in range(64):
        order.batch(step)
    assert len(calls) < 8 * 64, "fewer than one permutation of 8 rounds a step, for 20 sources"


def test_a_weighted_source_without_sequences_is_refused() -> None:
    with pytest.raises(InputError, match='"code" has a weight but no sequence'):
        order_of({"web": 10, "code": 0}, {"web": 0.5, "code": 0.5}, 2, 0)
    assert order_of({"web": 10}, {"web": 1.0, "code": 0.0}, 2, 0).batch(0) == [("web", 0, 0), ("web", 1, 0)]


N, KEYS, BINS, FALSE_POSITIVES = 3001, 60, 50, 1e-4
Items = NDArray[np.int64]


def serial_rank_correlation(items: Items) -> float:
    """Serial correlation r of consecutive items: sqrt(n) * r is standard normal (Wald and Wolfowitz 1943)."""
    # The items of a permutation are their ranks.
    return float(np.corrcoef(items[:-1], items[1:])[0, 1] * np.sqrt(len(items)))


def ascents(items: Items) -> float:
    """Number of ascents (runs test): mean (n - 1) / 2, variance (n + 1) / 12 (Eulerian numbers)."""
    n = len(items)
    return float((np.count_nonzero(np.diff(items) > 0) - (n - 1) / 2) / np.sqrt((n + 1) / 12))


def displacement(items: Items) -> float:
    """Displacement of items modulo n: chi-square of equal bins, as a standard normal variable."""
    n = len(items)
    counts = np.bincount((items - np.arange(n)) % n * BINS // n, minlength=BINS)
    sizes = np.bincount(np.arange(n) * BINS // n, minlength=BINS)
    found = float(((counts - sizes) ** 2 / sizes).sum())
    return (found - (BINS - 1)) / np.sqrt(2 * (BINS - 1))


def keyed(key: int) -> Items:
    return Permutation(N, f"{key}/web/0", WHOLE).apply(np.arange(N))


def as_read(key: int) -> Items:
    order = order_of({"web": N}, {"web": 1.0}, N, key)
    return np.array([sequence for _, sequence, _ in order.batch(0)])


def between_epochs(key: int) -> Items:
    """The second epoch in terms of the first."""
    first, second = (Permutation(N, f"{key}/web/{epoch}", WHOLE) for epoch in (0, 1))
    return second.invert(first.apply(np.arange(N)))


def drawn(key: int) -> Items:
    return np.random.default_rng(key).permutation(N)


def multiplied(key: int) -> Items:
    return np.arange(N) * (1000 + key) % N


def shifted(key: int) -> Items:
    return (np.arange(N) + key) % N


STATISTICS = (serial_rank_correlation, ascents, displacement)


def deviates(permutation: Callable[[int], Items], statistic: Callable[[Items], float]) -> bool:
    from scipy.stats import chi2  # imported here, because it takes half a second

    total = sum(statistic(permutation(key)) ** 2 for key in range(KEYS))
    return bool(total > chi2.isf(FALSE_POSITIVES, KEYS))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("permutation", [keyed, as_read, between_epochs, drawn])
def test_statistical_tests_cannot_tell_the_order_from_a_random_permutation(
    permutation: Callable[[int], Items], statistic: Callable[[Items], float]
) -> None:
    assert not deviates(permutation, statistic)


@pytest.mark.parametrize("permutation", [multiplied, shifted])
def test_statistical_tests_detect_a_poorly_shuffled_order(permutation: Callable[[int], Items]) -> None:
    assert any(deviates(permutation, statistic) for statistic in STATISTICS)
