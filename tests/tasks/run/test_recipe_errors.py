"""All errors in a recipe are reported at once: one line each, with place, cause and remedy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe, find_recipe

WRONG = """
name = "mine"
max_bad_shar = 0.1

[crawl]
seeds = ["example.org", "ftp://example.org/"]
max_pages = 0

[[extract.files]]
name = "books"
kind = "txt"
path = "/data/*.txt"

[[extract.files]]
name = "code"
kind = "text"
path = "/code/*.py"
exclude = "test"

[annotate]
use = ["language", "gopher_quality", "gopher_repetition", "prose_score", "pii", "fineweeb"]
settings.language = { chars = 0, char = 5 }

[consolidate]
trusted = ["bokks"]
limits.gopher_quality = { min_words = "30", max_wrods = 7 }
limits.c4 = { min_sentences = 7 }

[tokenizer]
weights = { code = 0.5, web = 0.4 }

[canary]
seeds = [0, 0]
current = { web = 0.5, cod = 0.5 }

[train]
batch_size = 5
milestones = 700

[place]
workers = true
"""

SAID = """\
crawl.seeds: the seed 'example.org' is not an http or https URL.
crawl.seeds: the seed 'ftp://example.org/' is not an http or https URL.
crawl.max_pages: Input should be greater than or equal to 1 (got 0).
extract.files.0.kind: no kind "txt". Did you mean "text"?
extract.files.1.exclude: Input should be a valid array (got 'test'). Write a list, in brackets.
annotate.settings: language has no setting char. Did you mean "chars"?
annotate.settings.language.chars: Input should be greater than or equal to 1 (got 0).
annotate.settings: no annotator "fineweeb". Did you mean "fineweb"?
consolidate.limits: gopher_quality has no setting max_wrods. Did you mean "max_words"?
consolidate.limits.gopher_quality.min_words: Input should be a valid integer (got '30'): write a whole number, \
without quotes.
consolidate.limits: settings for c4 (min_sentences = 7, by default 5), which is not in use: name it in \
consolidate.filters, or take them out (--set consolidate.limits.c4={}).
tokenizer.weights: the weights sum to 0.9, not to 1: divide each by 0.9, which gives code = 0.55556, web = 0.44444.
canary.seeds: name at least one seed, and none twice.
train: batch_size 5 must be a multiple of microbatch 4.
train: 700 milestones do not fit into 600 steps.
place.workers: Input should be a valid integer (got True). Write a whole number, without quotes.
unknown key max_bad_shar. Did you mean "max_bad_share"?
"""

ACROSS = """
name = "mine"
[crawl]
seeds = ["https://example.org/"]
[[extract.files]]
name = "books"
kind = "text"
path = "/data/*.txt"
[annotate]
use = ["language", "gopher_quality", "classifier", "topic"]
[[classifiers.train]]
name = "edu"
positive = "good"
texts = [{ path = "/data/*.jsonl" }]
[consolidate]
trusted = ["bokks"]
filters = ["language", "fineweb", "gopher_quality"]
gold = { "language.scor" = 0.5, "quality.score" = 0.5 }
[canary]
current = { web = 0.5, cod = 0.5 }
batch_size = 5
[train]
mixture = { web = 1.0 }
"""

SAID_ACROSS = """\
crawl: contact is missing: webmasters of example.org must be able to reach you; set contact to a page or to \
mailto:name@host.
canary: batch_size 5 must be a multiple of microbatch 8.
consolidate.trusted: the recipe has no source "bokks". Did you mean "books"?
canary.current: the recipe has no source "cod": choose from books, web.
train.mixture: the canaries decide the mixture: write it as canary.current, or remove [canary].
consolidate.filters: "fineweb" is not measured: add "fineweb" to annotate.use, or take it out of consolidate.filters.
consolidate.gold: "quality" is not measured: add "quality" to annotate.use, or take it out of consolidate.gold.
consolidate.mask_pii: "pii" is not measured: add "pii" to annotate.use, or set mask_pii = false.
consolidate.gold: "language.scor": language measures no "scor". Did you mean "score"?
annotate.use: dedup reads "prose_score": add it.
annotate.settings.classifier.models: [[classifiers.train]] has no "quality": choose from edu.
annotate.settings.topic.model: [[classifiers.train]] has no "topic": choose from edu.
"""


def told(folder: Path, text: str) -> list[str]:
    (folder / "mine.toml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(folder / "mine.toml")
    assert caught.value.permanent
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("text", "said"), [(WRONG, SAID), (ACROSS, SAID_ACROSS)], ids=["fields", "across"])
def test_every_error_is_reported_with_place_cause_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert told(tmp_path, text) == [f"mine.toml: {line}" for line in said.splitlines()]


def test_contradictions_between_sections_are_reported_together_with_type_errors(tmp_path: Path) -> None:
    text = 'name = "mine"\n[[extract.files]]\nname = "books"\nkind = "text"\npath = "/data/*.txt"\nmax_fils = 3\n'
    assert told(tmp_path, f"{text}[train]\nmixture = {{ boks = 1.0 }}\n") == [
        'mine.toml: unknown key extract.files.0.max_fils. Did you mean "max_files"?',
    ], "a file source that cannot be read may be any"
    assert told(tmp_path, text.replace("max_fils", "max_files") + "[train]\nstep = 3\nmixture = { boks = 1.0 }\n") == [
        'mine.toml: unknown key train.step. Did you mean "steps"?',
        'mine.toml: train.mixture: the recipe has no source "boks". Did you mean "books"?',
    ]


def test_the_shell_prints_a_line_for_each(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ACROSS)
    command = [sys.executable, "-m", "tasks", "extract", "--recipe", str(tmp_path / "mine.toml")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert found.returncode == 2
    assert found.stderr.splitlines() == [f"sluice: mine.toml: {line}" for line in SAID_ACROSS.splitlines()]


def test_errors_of_overrides_are_reported_all_at_once_too() -> None:
    with pytest.raises(RecipeError) as caught:
        find_recipe("demo").override({"crawl.max_page": 5, "train.steps": "many", "canary.guarded": ["wib"]})
    assert str(caught.value).splitlines() == [
        'override: unknown key crawl.max_page. Did you mean "max_pages"?',
        "override: train.steps: Input should be a valid integer (got 'many'). Write a whole number, without quotes.",
        'override: canary.guarded: the recipe has no source "wib". Did you mean "web"?',
    ]


def test_errors_survive_pickling_from_a_worker() -> None:
    import pickle

    error = RecipeError("one", "mend it", [("two", "")])
    assert str(pickle.loads(pickle.dumps(error))) == "one. Mend it.\ntwo." == str(error)
