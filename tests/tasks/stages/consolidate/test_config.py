"""Contract of the consolidate settings that needs no other section of the recipe."""

from typing import Any

import pytest

from tasks.core.config import canonical_json
from tasks.filters.language import LanguageLabels, known_labels
from tasks.filters.language_values import shipped
from tasks.stages.consolidate.config import ConsolidateConfig


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"gopher_quality": {"min_words": True}}, r"gopher_quality\.min_words: .*integer \(got True\)"),
        ({"gopher_quality": {"min_words": "30"}}, r"gopher_quality\.min_words: .*integer \(got '30'\)"),
        ({"gopher_quality": {"min_words": 30.0}}, r"gopher_quality\.min_words: .*integer \(got 30\.0\)"),
        ({"gopher_quality": {"min_letters": True}}, r"gopher_quality\.min_letters: .*number \(got True\)"),
        ({"gopher_repetition": {"max_top_ngram": {"two": 0.1}}}, r"gopher_repetition\.max_top_ngram"),
        ({"language": {"keep": "en"}}, r"language\.keep"),
    ],
)
def test_limits_are_strict_in_type(limits: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConsolidateConfig(limits=limits)


def test_limits_from_a_file_are_accepted() -> None:
    limits: dict[str, dict[str, Any]] = {
        "gopher_quality": {"min_words": 30, "min_letters": 1},
        "gopher_repetition": {"max_top_ngram": {"2": 0.3}},
        "language": {"keep": ["en"]},
    }
    found = ConsolidateConfig(limits=limits).limits
    assert found["gopher_quality"]["min_letters"] == 1.0
    assert found["gopher_repetition"]["max_top_ngram"] == {"2": 0.3}
    assert found["language"]["keep"] == ["en"]
    assert canonical_json(ConsolidateConfig(limits=found)) == canonical_json(ConsolidateConfig(limits=limits))


def test_limits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"classifier\.at_least\.q is inf: only finite"):
        ConsolidateConfig(filters=("classifier",), limits={"classifier": {"at_least": {"q": float("inf")}}})


OWN: dict[str, dict[str, Any]] = {
    "gopher_quality": {"min_words": 30},
    "pdf": {"gopher_quality": {"min_letters": 0.5, "min_stop_words": 1}},
    "papers": {"gopher_quality": {"min_letters": 1}},
}
KINDS = {"web": "web", "papers": "pdf", "manuals": "pdf", "code": "text"}


def test_limits_of_a_source_override_those_of_its_kind_which_override_general_ones() -> None:
    config = ConsolidateConfig(limits=OWN, kinds=KINDS)
    names = ("min_words", "min_letters", "min_stop_words", "max_words")
    found = {source: [config.limits_of(source)["gopher_quality"][name] for name in names] for source in KINDS}
    assert found == {
        "web": [30, 0.8, 2, 100_000],
        "papers": [30, 1.0, 1, 100_000],
        "manuals": [30, 0.5, 1, 100_000],
        "code": [30, 0.8, 2, 100_000],
    }


def test_unset_limits_of_a_kind_follow_the_general_ones() -> None:
    found = ConsolidateConfig(limits=OWN).limits
    assert found["pdf"] == {"gopher_quality": {"min_letters": 0.5, "min_stop_words": 1}}
    assert found["papers"] == {"gopher_quality": {"min_letters": 1.0}}
    later = {**found, "gopher_quality": {"min_words": 7}}
    assert ConsolidateConfig(limits=later, kinds=KINDS).limits_of("papers")["gopher_quality"]["min_words"] == 7
    assert canonical_json(ConsolidateConfig(limits=found)) == canonical_json(ConsolidateConfig(limits=OWN))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"gopher_qualit": {"min_letters": 0.5}}, r'pdf: no filter "gopher_qualit": did you mean "gopher_quality"'),
        (
            {"gopher_quality": {"min_leters": 0.5}},
            r'pdf: gopher_quality has no setting min_leters: did you mean "min_l',
        ),
        ({"gopher_quality": {"min_letters": "0.5"}}, r"pdf\.gopher_quality\.min_letters: .*number \(got '0\.5'\)"),
        ({"c4": {"min_sentences": 3}}, r"pdf: limits of c4, which is not in use: .*limits\.pdf\.c4=\{\}"),
    ],
)
def test_limits_of_a_kind_are_checked_as_general_ones_are(own: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConsolidateConfig(limits={"pdf": own})


def test_dropping_lines_requires_the_sentence_rule_for_every_source() -> None:
    limits: dict[str, dict[str, Any]] = {"c4": {"min_sentences": 2}, "pdf": {"c4": {"min_sentences": 0}}}
    with pytest.raises(ValueError, match=r"limits\.pdf\.c4\.min_sentences of 1 or more"):
        ConsolidateConfig(filters=("c4",), limits=limits, drop_lines=True)


LANGUAGES: dict[str, dict[str, Any]] = {
    "gopher_quality": {"min_letters": 0.4, "max_mean_word": 11.0},
    "lang": {"ja": {"gopher_quality": {"min_words": 20}, "gopher_repetition": {"max_duplicate_ngram": {"5": 0.5}}}},
    "pdf": {"gopher_quality": {"min_words": 10}},
}


def test_limits_of_a_language_stand_between_general_ones_and_those_of_a_kind() -> None:
    config = ConsolidateConfig(limits=LANGUAGES, kinds=KINDS)
    shipped_ja = shipped().limits["ja"]["gopher_quality"]
    english, japanese, paper = (
        config.limits_of(source, language=language)["gopher_quality"]
        for source, language in (("web", "en"), ("web", "ja"), ("papers", "ja"))
    )
    assert (english["min_words"], japanese["min_words"], paper["min_words"]) == (50, 20, 10)
    # Mean word length of the general limits describes English; a general limit that the recipe changes holds for all.
    assert (english["max_mean_word"], japanese["max_mean_word"]) == (11.0, shipped_ja["max_mean_word"])
    assert (english["min_letters"], japanese["min_letters"]) == (0.4, 0.4)
    assert "min_letters" in shipped_ja
    ngrams = config.limits_of("web", language="ja")["gopher_repetition"]["max_duplicate_ngram"]
    assert (ngrams["5"], ngrams["6"]) == (0.5, shipped().limits["ja"]["gopher_repetition"]["max_duplicate_ngram"]["6"])


def test_a_language_without_values_has_no_limits_that_describe_one() -> None:
    limits = ConsolidateConfig(limits={}).limits_of("web", language=ConsolidateConfig(limits={}).language_of("xal"))
    assert (limits["gopher_quality"]["max_mean_word"], limits["gopher_quality"]["min_stop_words"]) == (None, 0)


def test_limits_of_a_language_need_the_filter_that_knows_it() -> None:
    with pytest.raises(ValueError, match=r"name language in consolidate\.filters"):
        ConsolidateConfig(filters=("gopher_quality",), limits={"lang": LANGUAGES["lang"]})


def test_an_unknown_language_is_refused_with_the_known_one() -> None:
    config = ConsolidateConfig(limits={"lang": {"jpn": {"gopher_quality": {"min_words": 20}}}})
    labels = known_labels(LanguageLabels().model_dump())
    assert list(config.misplaced_limits([], labels)) == [
        'consolidate.limits.lang: no language "jpn": did you mean "ja"?'
    ]
