"""Model card of an n-gram model: training text, size, held-out perplexity, cut points and limits."""

from dataclasses import dataclass

from tasks.filters.ngram.model import Scores
from tasks.formats.model_card import model_card, table
from tasks.stages.perplexity.config import PerplexityConfig, Reference
from tasks.stages.perplexity.cuts import Cuts
from tasks.stages.perplexity.estimate import Estimate

_KINDS = {"text": "files of one text", "jsonl": "JSON lines", "documents": "documents of the corpus"}
_LIMITS = (
    "- Perplexities of two models cannot be compared: they have different vocabularies.",
    "- A text of another kind than the references (code, verse, tables, another language) scores as unusual.",
    "- A text that repeats usual phrases scores well, whatever it says; very low values are often boilerplate.",
    "- Phrases of the references can be read out of the files: who may not see them may not have it.",
)


@dataclass(frozen=True)
class Use:
    """Training text drawn from one reference: number of texts, and UTF-8 bytes."""

    reference: Reference
    texts: int
    bytes: int


def card(
    language: str, config: PerplexityConfig, uses: list[Use], estimate: Estimate, heldout: Scores, cuts: Cuts
) -> str:
    """Returns the card as Markdown."""
    words, unknown = int(heldout.words.sum()), int(heldout.unknown.sum())
    whole = heldout.total()
    entries = [len(level.prob) for level in estimate.ngrams.levels]
    orders = [
        [
            str(n),
            f"{estimate.distinct[n - 1]:,}",
            f"{entries[n - 1]:,}",
            str(config.thresholds[n - 1]),
            ", ".join(f"{value:.3f}" for value in estimate.discounts[n - 1])
            + (" (assumed: too little text)" if estimate.fallback[n - 1] else ""),
        ]
        for n in range(1, config.order + 1)
    ]
    sources = [
        [
            use.reference.name,
            _KINDS[use.reference.kind],
            f"{use.texts:,}",
            f"{use.bytes:,}",
            use.reference.licence or "not stated",
        ]
        for use in uses
    ]
    description = [
        f"An interpolated modified Kneser-Ney model of order {config.order} over {entries[0] - 3:,} words "
        "(lower case, digits as 0, punctuation marks as words; a line is a sentence).",
        "It tells how usual a text is beside the texts below. It says nothing of whether a text is true or good.",
    ]
    sections = {
        "Learnt from": table(["reference", "kind", "texts", "bytes", "licence"], sources),
        "Size": table(["order", "different n-grams", "kept", "left out up to", "discounts 1, 2, 3+"], orders),
        "Held-out text": [
            f"- texts: {len(heldout.words):,}; words: {words:,}; unknown: {unknown / max(1, words):.2%}",
            f"- perplexity: {whole.perplexity[0]:.1f}; without unknown words: {whole.perplexity_known[0]:.1f}",
        ],
        "Head, middle, tail": [
            f"Head up to {cuts.head:.1f}, middle up to {cuts.middle:.1f}, tail above: a third each of {cuts.of}."
        ],
        "Limits": _LIMITS,
    }
    return model_card(f"N-gram model, language `{language}`", description, sections)
