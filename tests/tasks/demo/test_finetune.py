"""The fine-tuning demo without its services: generated manuals are extracted correctly, and the report of a run."""

from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.demo.finetune import Base, manual, tuning_report, write_manuals
from tasks.demo.home import Home, Ports
from tasks.demo.report import RunArtifacts
from tasks.formats.pdf.document import read_pdf
from tasks.run.import_model import imported_model
from tasks.run.recipe import find_recipe
from tasks.stages.tokens.token_import import read_beside as chat_template_beside
from tests.tasks.run.tunings import Tunings, tunings
from tests.tasks.trainer.in_process import in_process
from tests.tasks.trainer.interchange.chat_templates import FAMILIES, write_chat_folder

__all__ = ["in_process", "tunings"]

TOPIC = """The "door" statement
********************

A door — as in (1) — opens at nine and closes at five, and whoever
comes later has to knock.


Windows
=======

{}

   window ::= "open" | "shut"
"""


def test_a_generated_manual_is_extracted_with_its_headings_on_its_pages() -> None:
    names = [first + second for first in "abcdef" for second in "klmnopqrst"]
    many = "\n\n".join(f"{'Every ' * (n % 7)}window {name} is opened by whoever comes." for n, name in enumerate(names))
    read = read_pdf(manual(TOPIC.format(many)))
    assert read.title == 'The "door" statement'
    assert [read.text[one.start : one.end] for one in read.layout if one.kind == "heading"] == [read.title, "Windows"]
    assert "A door — as in (1) — opens at nine and closes at five, and whoever comes later has to knock." in read.text
    assert [read.text.count(f"window {name} is opened") for name in names] == [1] * len(names)
    assert {one.page for one in read.layout} == {1, 2, 3}


def test_equal_python_versions_give_equal_manuals(tmp_path: Path) -> None:
    one, two = (write_manuals(tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in one] == [path.name for path in two]
    assert len(one) >= 10
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_a_run_starts_from_the_base_with_its_tokenizer_and_the_manuals_of_the_stack(tunings: Tunings) -> None:
    home = Home(Path("/stack"), Ports(1, 2, 3, 4))
    request = Base.of(tunings.artifact("checkpoint", "1")).request(home)
    recipe = find_recipe("manuals").override(request.overrides)
    assert request.version == "mine-1"
    assert recipe.finetune.base == "mine/checkpoint@1"
    assert recipe.extract.files[0].path == "/stack/manuals/*.pdf"
    assert Path(recipe.tokenizer.file).read_bytes() == tunings.artifact("tokenizer", "1").read("tokenizer.json")
    assert recipe.stages("finetune") == ("examples", "finetune", "evaluate_tuned", "register_tuned")


def test_a_model_folder_is_imported_and_tuned_in_its_own_template(tmp_path: Path) -> None:
    folder, store = write_chat_folder(tmp_path / "Small Model", "Qwen 2.5"), Store(str(tmp_path / "store"))
    base = imported_model(store, str(folder))
    assert imported_model(store, f"{folder}/").record == base.record
    request = Base.of(base).request(Home(tmp_path, Ports(1, 2, 3, 4)))
    recipe = find_recipe("manuals").override(request.overrides)
    assert request.version == f"imported-{base.address.version}"
    assert (recipe.tokenizer.end_of_text, recipe.finetune.optim.lr) == ("<|im_end|>", 1e-4)
    assert chat_template_beside(recipe.tokenizer.file, "<|im_end|>")[0] == FAMILIES["Qwen 2.5"].jinja
    (folder / "README.md").write_text("changed")
    other = Base.of(imported_model(store, str(folder))).request(Home(tmp_path, Ports(1, 2, 3, 4)))
    assert other.version != request.version, "another model is another run"


def test_the_report_names_scores_a_question_and_the_box_of_its_page(tunings: Tunings) -> None:
    tunings.tune("apart", examples__heldout_share=0.3)
    for stage in ("evaluate_tuned", "register_tuned"):
        tunings.run(stage, "apart", examples__heldout_share=0.3)
    for kind in ("documents", "chunks", "tokenizer"):  # a run of the demo writes all artifacts at one version
        made = Artifact.open_at(tunings.store, ArtifactId(f"mine/{kind}", "1"))
        record = made.record.model_copy(update={"artifact": f"mine/{kind}@apart", "adopted_from": f"mine/{kind}@1"})
        tunings.store.publish(f"mine/{kind}/apart/.artifact.json", record.model_dump_json().encode())
    told = list(tuning_report(RunArtifacts(Store(tunings.store.root), "mine", "apart"), 13, []))
    assert [line for line in told if line and line[0] != " "] == [
        *("Examples", "Fine-tuning", "Base and model", "A question", "Its page", "Time")
    ]
    shown = "\n".join(told)
    assert "  13 PDF files, " in shown
    assert "  source books " in shown
    assert "  question   " in shown
    assert "  bits per byte of the page's text after the question: base " in shown
    assert "  fine-tuned: mine/finetuned@apart, begun from mine/checkpoint@1" in shown
