"""Minimum precision and recall on the sentences of `benchmarks.pii`."""

from benchmarks.pii import NEGATIVE, PHONES, cases, rare, score

KINDS = ("email", "phone", "ip", "ssn", "card", "iban", "address")


def test_common_forms_of_every_kind_are_found_exactly_and_nothing_else() -> None:
    scores = score(cases(rounds=20, seed=11))
    assert sorted(scores) == sorted(KINDS)
    for kind, of in scores.items():
        assert of["precision"] >= 0.98, (kind, of)
        assert of["recall"] >= 0.98, (kind, of)


def test_half_of_the_rare_forms_are_found() -> None:
    scores = score(rare())
    exact, gold = (sum(of[name] for of in scores.values()) for name in ("exact", "gold"))
    assert exact / gold >= 0.6, scores


def test_no_hard_negative_is_found_alone_or_after_other_text() -> None:
    negatives = [case for case in cases(rounds=10, seed=12) if case.topic.startswith("not_")]
    assert len(negatives) == 10 * len(NEGATIVE)
    wrong = score(negatives)
    assert sum(of["found"] for of in wrong.values()) <= 2, wrong


def test_the_cases_are_the_same_every_time_and_cover_every_country() -> None:
    assert cases(rounds=2, seed=3) == cases(rounds=2, seed=3)
    topics = {case.topic for case in cases(rounds=1)}
    assert {f"phone_{country}" for country in PHONES} <= topics
