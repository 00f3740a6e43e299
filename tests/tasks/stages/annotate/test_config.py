"""Contract of the annotate settings that needs no other section of the recipe."""

import pytest

from tasks.stages.annotate import AnnotateConfig


def test_an_annotator_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="language is named twice"):
        AnnotateConfig(use=("language", "pii", "language"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"language": {"chars": "30"}}, r"language\.chars: Input should be a valid integer \(got '30'\)"),
        ({"language": {"chars": True}}, r"language\.chars: Input should be a valid integer \(got True\)"),
        ({"language": {"chars": 30.0}}, r"language\.chars: .*integer \(got 30\.0\)"),
        ({"language": {"paragraphs": 1}}, r"language\.paragraphs: Input should be a valid boolean \(got 1\)"),
        ({"pii": {"kinds": "email"}}, r"pii\.kinds: Input should be a valid"),
    ],
)
def test_settings_of_annotators_are_strict_in_type(settings: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AnnotateConfig(settings=settings)


def test_settings_of_unused_annotators_are_refused_with_all_remedies() -> None:
    with pytest.raises(ValueError, match="not in use") as caught:
        AnnotateConfig(use=("language",), settings={"fineweb": {"short": 9}})
    assert (
        "settings for fineweb (short = 9, by default 30), which is not in use: name it in annotate.use, "
        "or take them out (--set annotate.settings.fineweb={})" in str(caught.value)
    )
