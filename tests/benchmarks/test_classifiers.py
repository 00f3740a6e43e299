"""The table of `benchmarks.classifiers` agrees with its labels."""

from benchmarks.classifiers import by_language


def test_recall_and_precision_are_those_of_each_language():
    table = by_language(["de", "de", "de", "de", "en", "fo"], ["de", "de", "nl", "en", "en", "is"])
    assert table["de"] == {"sentences": 4, "recall": 0.5, "precision": 1.0, "taken_for": {"nl": 1, "en": 1}}
    assert (table["en"]["recall"], table["en"]["precision"]) == (1.0, 0.5)
    assert (table["fo"]["recall"], table["fo"]["precision"]) == (0.0, None)
