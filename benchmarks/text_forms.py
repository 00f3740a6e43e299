"""Plain text or Markdown: what each form of a page does to tokens, filters and a small model.

    python -m benchmarks.text_forms --gold FOLDER --segments FOLDER --manuals FOLDER

Extracts the same pages in both forms (`[extract] text`). The folders are those of
`benchmarks.extraction`; the pages of manuals have tables, lists and code. Three figures:

- tokens of Markdown per token of plain text, by one tokenizer trained on both;
- pages on which Gopher's filters decide differently: measured as the stage does it, without the marks, and with them;
- a canary: models of half a million weights, trained by the stages of the product for equally many steps with three
  seeds, on manuals in one of the forms and on the paragraphs of the other pages, which are the same in both. Bits of
  held-out documents per byte of their plain text, so that both forms are charged for the same content.

Writes `text_forms.json`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import continual
from benchmarks.extraction import read_pages, read_segments
from benchmarks.harness import keep, parser
from benchmarks.manual_tables import read_manuals
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.filters.catalogue import annotator, filter_of
from tasks.formats.documents.document import document_id
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.annotate.measure import run_annotators
from tasks.stages.consolidate.stage import KEPT_SCHEMA
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.stages.tokens.bpe import train
from tasks.trainer.data.heldout import heldout_by_source
from tasks.trainer.evaluation.bpb import document_bits
from tasks.trainer.model.model_file import last_weights, load_model

FORMS = ("plain", "markdown")
MEASURED = ("language", "gopher_quality", "gopher_repetition")
FILTERS = ("gopher_quality", "gopher_repetition")
LONGEST = 6_000
"""Characters of plain text of a page of the canary; longer pages are left out: a cut would differ between the forms."""
PROSE, MANUALS = "prose", "manuals"
ALL = 10**9


def both_forms(pages: Sequence[str]) -> dict[str, list[str]]:
    """Returns the texts of pages by form."""
    return {form: [read_page(html, ExtractConfig(text=form)).text for html in pages] for form in FORMS}


def dropped(texts: Sequence[str], form: str) -> NDArray[np.bool_]:
    """Returns which of some texts of a form Gopher's filters drop, shape (texts,)."""
    count = len(texts)
    columns = {"id": list(map(str, range(count))), "text": list(texts), "source": ["web"] * count}
    table = pa.table({**columns, "url": ["https://example.org/"] * count, "form": [form] * count})
    annotators = {name: annotator(name, {}) for name in MEASURED}
    for one in annotators.values():
        one.prepare({})
    found = run_annotators(table, annotators, {})
    mask = np.zeros(count, np.bool_)
    for name in FILTERS:
        column = found[name].column
        measured = {field.name: column.field(field.name).to_numpy(zero_copy_only=False) for field in column.type}
        for _, reason in filter_of(name, {}).reasons(measured):
            mask |= reason
    return mask


def token_counts(texts: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns the tokens of each form by one tokenizer, trained on both."""
    tokenizer = train([text for form in FORMS for text in texts[form]], TokenizerConfig(vocab_size=16_000))
    return {form: sum(len(one.ids) for one in tokenizer.encode_batch(list(texts[form]))) for form in FORMS}


def documents(form: str, manuals: Sequence[str], prose: Sequence[str]) -> Artifact:
    """Returns an artifact with the kept documents of the canary of one form."""
    empty: dict[str, Any] = {field.name: None if field.nullable else "" for field in KEPT_SCHEMA}
    rows = []
    for source, texts in ((MANUALS, manuals), (PROSE, prose)):
        for number, text in enumerate(texts):
            url = f"https://{source}.example.org/{number}"
            row = {"id": document_id(url, "sha1:A"), "url": url, "text": text, "source": source}
            rows.append({**empty, **row, "tier": "silver", "language": "en"})
    output = Output(Store(str(continual.FOLDER)), ArtifactId("continual/documents", form), f"texts {form}")
    with output.part(part_names(1)[0], conserved=False) as part:
        part.table("kept", pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), schema=KEPT_SCHEMA))
    return commit(output, "texts", 1, Config(), [], Report())


def canary(texts: Mapping[str, Sequence[str]], prose: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Trains models on each form; returns the bits per byte of plain text, by form and source, a value per seed."""
    data: dict[str, tuple[Artifact, Artifact]] = {}
    for form in FORMS:
        kept = documents(form, texts[form], prose)
        tokenizer = continual.made(
            "tokenizer", form, "tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=2_048), documents=kept
        )
        shards = continual.made(
            "shards", form, "tasks.stages.tokens.encode", EncodeConfig(heldout_share=0.25), documents=kept,
            tokenizer=tokenizer,
        )  # fmt: skip
        plan = continual.made("plan", form, "tasks.stages.tokens.pack", PackConfig(seq_len=128), shards=shards)
        data[form] = shards, plan
    held = {form: heldout_by_source(ShardSet.open(shards), ALL) for form, (shards, _) in data.items()}
    plain = {source: sum(one.n_bytes for one in rows) for source, rows in held["plain"].items()}
    steps = continual.steps_from_nothing(data["plain"][1])
    found: dict[str, Any] = {"steps": steps, "heldout_bytes": plain}
    for form, (shards, plan) in data.items():
        by_source: dict[str, list[float]] = {source: [] for source in plain}
        for seed in seeds:
            run = continual.trained(f"{form}-{seed}", continual.training(steps, seed), shards=shards, plan=plan)
            weights = Path(last_weights(run, "", None)[1].file)
            model, about = load_model(Path(run.local("model.json")), weights)
            for source, rows in held[form].items():
                bits = document_bits(model, rows, about["eos_id"], about["seq_len"])
                by_source[source].append(round(float(sum(bits)) / plain[source], 4))
            print(form, seed, {source: values[-1] for source, values in by_source.items()}, flush=True)
        found[form] = by_source
    return found


def main() -> None:
    options = parser(__doc__)
    for name in ("--gold", "--segments", "--manuals"):
        options.add_argument(name, type=Path, required=True)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    pages = [page.html for page in read_pages(given.gold)] + [page.html for page in read_segments(given.segments)]
    manuals = [page.html for page in read_manuals(given.manuals)]
    texts, of_manuals = both_forms(pages), both_forms(manuals)
    everything = {form: [*texts[form], *of_manuals[form]] for form in FORMS}
    tokens = {name: token_counts(which) for name, which in (("pages", texts), ("manuals", of_manuals))}
    measured = dropped(everything["plain"], "plain")
    differing = {
        "without_marks": int((dropped(everything["markdown"], "markdown") != measured).sum()),
        "with_marks": int((dropped(everything["markdown"], "plain") != measured).sum()),
    }
    short = [index for index, text in enumerate(of_manuals["plain"]) if 200 < len(text) <= LONGEST]
    chosen = {form: [of_manuals[form][index] for index in short] for form in FORMS}
    # Paragraphs that both forms write alike.
    alike = (text for text, other in zip(texts["plain"], texts["markdown"], strict=True) if text == other)
    prose = [text for text in alike if 200 < len(text) <= LONGEST]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(continual, "FOLDER", Path(folder)):
        trained = canary(chosen, prose, range(given.seeds))
    keep("text_forms", {
        "pages": len(pages),
        "manuals": len(manuals),
        "tokens": tokens,
        "markdown_per_plain": {name: round(one["markdown"] / one["plain"], 4) for name, one in tokens.items()},
        "gopher_decides_differently": differing,
        "canary": {"documents": {MANUALS: len(short), PROSE: len(prose)}, **trained},
    })  # fmt: skip


if __name__ == "__main__":
    main()
