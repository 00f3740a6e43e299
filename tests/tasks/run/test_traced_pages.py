"""A training step is traced to the pages of its PDF files."""

from pathlib import Path

from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_recipe_parts import RECIPE
from tests.tasks.stages.extract.made_pdf import lines, pdf

STAGES = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack", "train")
PAGES = 3


def page(file: int, number: int) -> str:
    """A page with identifying words and an address that is masked."""
    return lines(
        60,
        740,
        [*(f"Page p{number} has p{number} in f{file}x{number}x{word}" for word in range(9)), "of ann@example.org."],
    )


def test_a_step_names_file_and_pages_of_its_documents(tmp_path: Path) -> None:
    for source in ("books", "notes"):
        (tmp_path / source).mkdir()
        for file in range(4):
            (tmp_path / source / f"{file}.pdf").write_bytes(pdf([page(file, number) for number in range(1, PAGES + 1)]))
    text = RECIPE.format(folder=tmp_path).replace('kind = "text"', 'kind = "pdf"').replace("*.txt", "*.pdf")
    (tmp_path / "mine.toml").write_text(text)
    recipe = Recipe.load(tmp_path / "mine.toml")
    for stage in STAGES:
        run_stage(recipe, stage, version="1", tracking=TrackingContext("", recipe.name))
    answer = trace(open_store(recipe), "mine", "1", "step:0")
    found = answer.to_json()
    slices = [one for sequence in found["sequences"] for one in sequence["slices"]]
    # Sequences are shorter than the excerpts, so `text` is complete.
    named = [{number for number in range(1, PAGES + 1) if f" p{number} " in one["text"]} for one in slices]
    assert all(numbers <= set(one["pages"]) for numbers, one in zip(named, slices, strict=True))
    # Each page ends with its only full stop.
    inside = [one for one in slices if "." not in one["text"] and not one["text"][0].isspace()]
    assert inside
    assert all(len(one["pages"]) == 1 for one in inside)
    assert len(set.union(*named)) > 1
    assert not any("@" in one["text"] for one in slices)
    told = render(answer).split("\n")
    one = slices[0]
    last = one["start"] + one["length"] - 1
    pages = ", ".join(map(str, one["pages"]))
    assert f"  {one['url']}  tokens {one['start']:,} .. {last:,}, page {pages}" in told
