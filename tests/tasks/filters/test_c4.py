"""Contract of C4's rules: kept lines, their number of sentences, and dropped texts."""

import pytest

from tasks.filters.batch import DocumentBatch
from tasks.filters.c4 import C4, C4Measures

FIVE = "It rained. We stayed at home. Nobody minded that. The cat slept. So did the dog."


def measured(text: str) -> dict[str, object]:
    (row,) = C4Measures().annotate(DocumentBatch([text])).to_pylist()
    return row


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FIVE, None),
        (FIVE.replace("So did the dog.", ""), "few_sentences"),
        ("\n".join(["This line stays."] * 5), None),
        ("\n".join(["This line stays."] * 4 + ["This line does not"]), "few_sentences"),
        ("\n".join(["This line stays."] * 4 + ["And so ..."]), "few_sentences"),
        ("\n".join(["This line stays."] * 4 + ["Not this."]), "few_sentences"),
        ("\n".join(["This line stays."] * 4 + ["Please enable JavaScript here."]), "few_sentences"),
        ("\n".join(["This line stays."] * 4 + ["This site uses cookies, friend."]), "few_sentences"),
        ("\n".join(["This line stays."] * 4 + [f"A {'w' * 1001} word."]), "few_sentences"),
        (f"{FIVE}\nHere is lorem ipsum dolor.", "lorem_ipsum"),
        (f"{FIVE}\nif (x) {{ return 'y'", "curly_bracket"),
        (f"{FIVE}\nfunction f() {{", None),
        ("\n".join(["A fact as known.[12]"] * 5), None),
    ],
)
def test_each_rule_has_its_limit(text: str, reason: str | None) -> None:
    assert C4().verdict(text) == (reason and f"c4_{reason}")


def test_sentences_are_counted_at_end_marks() -> None:
    assert measured('He said "Yes!?" and left. Why? No one knows... Dr. No did. Well.')["sentences"] == 5
    assert measured("One ends here. [3] Another one does so.")["sentences"] == 2
    assert measured("")["sentences"] == 0


def test_the_indices_of_lines_removed_by_c4_are_measured() -> None:
    found = measured("Home\nThis line stays, it does.\n\nAbout us\nAnother line that stays.")
    assert found["dropped_lines"] == [0, 2, 3]


SHORT_NEWS = (
    "The bridge over the upper river was opened to traffic on Monday after two years of work. The mayor thanked all\n"
    "Work had begun in the spring. Three firms took part in it. A second bridge is planned. Its cost is not known yet\n"
)


def test_lines_without_an_end_mark_are_kept_without_that_rule_as_in_fineweb() -> None:
    strict, open_ = (
        C4Measures(end_marks=marks).annotate(DocumentBatch([SHORT_NEWS])).to_pylist()[0] for marks in (True, False)
    )
    assert (strict["sentences"], strict["dropped_lines"]) == (0, [0, 1, 2])
    assert (open_["sentences"], open_["dropped_lines"]) == (6, [2])
    kept = C4Measures(end_marks=False).annotate(
        DocumentBatch(["And so it goes on ...\nHome | About\nUse JavaScript here"])
    )
    assert kept.to_pylist()[0]["dropped_lines"] == [2], "the other rules stay"
