"""Drift between months: what rings, and what does not."""

import math
import random

import pytest

from tasks.run.monthly.drift import CATEGORIES, Drift, compare, new_languages, vanished
from tasks.run.monthly.figures import MOST, OTHER, Counts, largest, sampled


def one(month: Counts, *before: Counts, threshold: float = 0.25) -> Drift:
    (found,) = compare({"domains": month}, [{"domains": counts} for counts in before], threshold)
    return found


def test_the_index_is_that_of_the_formula() -> None:
    found = one({"a": 600, "b": 400}, {"a": 150, "b": 350}, {"a": 150, "b": 350})
    now, then = (600.5 / 1001, 400.5 / 1001), (300.5 / 1001, 700.5 / 1001)
    assert found.psi == pytest.approx(sum((p - q) * math.log(p / q) for p, q in zip(now, then, strict=True)))
    assert found.alert
    assert found.needed == 0.25
    assert found.moved[0][0] == "a"
    assert sorted(found.moved) == [("a", 0.3, 0.6), ("b", 0.7, 0.4)]


def test_equal_months_have_no_drift() -> None:
    assert one({"a": 30, "b": 70}, {"a": 30, "b": 70}).psi == 0


@pytest.mark.parametrize("documents", [10, 100, 1000])
def test_months_drawn_from_one_distribution_do_not_ring(documents: int) -> None:
    draw = random.Random(documents)
    names = [f"d{number}" for number in range(40)]
    weights = [1 / (number + 1) for number in range(40)]

    def month() -> Counts:
        drawn = draw.choices(names, weights, k=documents)
        return {name: drawn.count(name) for name in {*drawn}}

    assert sum(one(month(), month(), month(), month()).alert for _ in range(100)) == 0


def test_a_farm_of_pages_rings_and_is_named() -> None:
    ordinary = {f"site{number}.example": 20 for number in range(10)}
    found = one({**ordinary, "farm.example": 120}, ordinary, ordinary)
    assert found.alert
    assert found.moved[0] == ("farm.example", 0.0, 120 / 320)
    assert "farm.example 0% to 38%" in found.text()


def test_only_the_largest_categories_are_compared() -> None:
    many = {f"d{number:03}": 1000 - number for number in range(CATEGORIES)} | {f"s{number}": 1 for number in range(500)}
    found = one(many, {**many, **{f"t{number}": 1 for number in range(500)}})
    assert not found.alert


def test_a_month_without_months_before_is_not_compared() -> None:
    assert compare({"domains": {"a": 1}}, [], 0.25) == []
    assert compare({"domains": {"a": 1}}, [{}], 0.25) == []


def test_a_language_that_no_month_had_is_named_unless_it_is_rare() -> None:
    before = [{"languages": {"en": 99, "de": 1}}, {"languages": {"en": 100}}]
    assert new_languages({"languages": {"en": 90, "de": 5, "fr": 5}}, before) == [("fr", 0.05)]
    assert new_languages({"languages": {"en": 995, "fr": 5}}, before) == []
    assert new_languages({"languages": {"fr": 5}}, []) == []


def test_a_domain_has_vanished_if_it_had_pages_and_every_request_failed() -> None:
    earlier = [{"gone.example": (3, 0), "never.example": (0, 2), "there.example": (5, 1), "quiet.example": (2, 0)}]
    now = {"gone.example": (0, 2), "never.example": (0, 2), "there.example": (1, 9), "new.example": (0, 1)}
    assert vanished(now, earlier) == ["gone.example"]
    assert vanished(now, [*earlier, now]) == [], "it has rung before"
    assert vanished(now, [*earlier, {"there.example": (4, 0)}]) == ["gone.example"], "not crawled in the last month"


def test_the_largest_categories_are_stored_and_the_others_summed() -> None:
    counts = largest({f"d{number:04}": number for number in range(MOST + 10)})
    assert len(counts) == MOST + 1
    assert counts[OTHER] == sum(range(10))
    assert sum(counts.values()) == sum(range(MOST + 10))


def test_a_sample_of_files_is_spread_over_all() -> None:
    names = [f"{number:03}" for number in range(100)]
    assert sampled(names) == names[::4]
    assert sampled(names[:32]) == names[:32]
