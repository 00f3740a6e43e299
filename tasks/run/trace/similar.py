"""Near copies of a text among the documents of a version.

Reads, of the version's `duplicates`, the band keys of every signature (`bands/`) and the verdicts (`duplicates/`); of
`extracted` the texts that share a band with the text; of `documents` who was kept. Nothing is compared that shares no
band: a pair of Jaccard similarity s shares one with probability 1 - (1 - s^rows)^bands. What does share one is verified
by the true similarity, as `dedup` does.

The text's signature is computed by datasketch, whose values those of the version equal one for one, so any other tool
that holds datasketch signatures can look up its texts here in the same way.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BAND, BANDS
from tasks.formats.dedup.document_ids import row_of
from tasks.formats.documents.text import normalise
from tasks.run.trace.graph import Chain
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import jaccard, shingle_sets
from tasks.stages.dedup.signatures import band_keys, salted, shingle

MOST_COPIES = 20
"""Copies that are shown."""
_VERIFIED = 2_000
"""Documents that are verified, those with most bands in common first."""


@dataclass(frozen=True)
class Copy:
    """A document that is near the text.

    Attributes:
        id: of the document.
        url: of the document.
        jaccard: true similarity of the shingle sets of the two texts, 0 to 1.
        bands: number of bands in common.
        outcome: "kept", the reason it was rejected, or "" where the documents of the version have not been made.
        duplicate_of: id of the document that was kept in its place, or "".
    """

    id: str
    url: str
    jaccard: float
    bands: int
    outcome: str
    duplicate_of: str


@dataclass(frozen=True)
class Similar:
    """Answer to a search.

    Attributes:
        compared: documents of the version.
        candidates: documents that share a band with the text.
        verified: candidates whose similarity was computed.
        threshold: least similarity.
        recall: probability that a document exactly at the threshold shares a band.
        copies: documents at the threshold or above, the most similar first.
    """

    compared: int
    candidates: int
    verified: int
    threshold: float
    recall: float
    copies: list[Copy]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        return asdict(self)

    def text(self) -> str:
        """Returns it as text."""
        lines = [
            f"{len(self.copies)} of {self.compared:,} documents have a Jaccard similarity of {self.threshold:g} or "
            f"more ({self.candidates:,} share a band, {self.verified:,} verified)"
        ]
        for one in self.copies:
            copy = f", copy of {one.duplicate_of}" if one.duplicate_of else ""
            lines.append(f"  {one.jaccard:.3f}  {one.id}  {one.url}  {one.outcome}{copy}")
        if self.recall < 0.9:
            lines.append(f"a copy at the threshold is found with probability {self.recall:.2f}; closer ones more often")
        return "\n".join(lines)


def similar(
    store: Store, recipe: str, version: str, text: str, threshold: float | None = None, most: int = MOST_COPIES
) -> Similar:
    """Returns the documents of a version that are near copies of a text.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the duplicates, or of anything made from them.
        text: any text; case, punctuation and layout do not count.
        threshold: least Jaccard similarity, over 0 and at most 1; None: that of the version's dedup.
        most: copies that are returned.

    Raises:
        InputError: the text has no words, the threshold is out of range, the version has no duplicates, or its dedup
            did not look for near ones.
    """
    chain = Chain.follow(store, recipe, version)
    duplicates, extracted = (_needed(chain, kind) for kind in ("duplicates", "extracted"))
    config = DedupConfig.model_validate(duplicates.record.config)
    least = config.jaccard if threshold is None else threshold
    if not 0 < least <= 1:
        raise InputError(f"a Jaccard similarity of {least} is out of range", "give one over 0 and at most 1")
    if not config.near:
        raise InputError(f"{duplicates.address} has no signatures", "set [dedup] near = true and make a new version")
    normalised = normalise(text)
    if not normalised:
        raise InputError("the text has no words", "give the text of a document")
    shared = _sharing_a_band(duplicates, _keys_of(normalised, config))
    found = list(_verified(extracted, text, config, shared.most_common(_VERIFIED), least))
    found.sort(key=lambda one: (-one.jaccard, one.id))
    settings = config.minhash
    return Similar(
        compared=duplicates.record.rows_out,
        candidates=len(shared),
        verified=min(len(shared), _VERIFIED),
        threshold=least,
        recall=1 - (1 - least**settings.rows) ** settings.bands,
        copies=list(_with_outcomes(chain, found[:most])),
    )


def _needed(chain: Chain, kind: str) -> Artifact:
    if kind not in chain.artifacts:
        raise InputError(f"this version of {chain.recipe} has no {kind}", "run the stage dedup first")
    return chain.artifacts[kind]


def _keys_of(normalised: str, config: DedupConfig) -> NDArray[np.uint64]:
    """Returns the band keys of a text, shape (bands,), as `bands/` has them."""
    from datasketch import MinHash  # imports SciPy: 0.7 s

    settings = config.minhash
    # datasketch's default hash keeps 32 bits of a digest; here the shingles are hashed already.
    signature = MinHash(settings.permutations, seed=settings.seed, hashfunc=lambda value: int(value) >> 32)
    signature.update_batch(shingle([normalised], settings.shingle)[0])
    values: NDArray[np.uint32] = signature.hashvalues.astype(np.uint32)[np.newaxis]
    keys: NDArray[np.uint64] = salted(band_keys(values, settings.bands, settings.rows))[0]
    return keys


def _sharing_a_band(duplicates: Artifact, keys: NDArray[np.uint64]) -> Counter[tuple[str, int]]:
    """Returns how many bands each document (part, row) has in common with a text."""
    shared: Counter[tuple[str, int]] = Counter()
    for path in duplicates.files(f"{BANDS}/"):
        part = path.removeprefix(f"{BANDS}/").removesuffix(".bin")
        for key in keys.tolist():
            same = sorted_runs.read_range(duplicates.folder, [path], BAND, key, key + 1)
            shared.update((part, row) for row in row_of(same["row_id"]).tolist())
    return shared


def _verified(
    extracted: Artifact, text: str, config: DedupConfig, candidates: list[tuple[tuple[str, int], int]], least: float
) -> Iterator[Copy]:
    (own,) = shingle_sets([text], config.minhash.shingle)
    by_part: dict[str, list[tuple[int, int]]] = {}
    for (part, row), bands in sorted(candidates):
        by_part.setdefault(part, []).append((row, bands))
    for part, rows in by_part.items():
        table = extracted.table(f"documents/{part}.parquet", columns=["id", "url", "text"])
        taken = table.take(pa.array([row for row, _ in rows]))
        sets = shingle_sets(taken.column("text").to_pylist(), config.minhash.shingle)
        ids, urls = (taken.column(name).to_pylist() for name in ("id", "url"))
        for doc_id, url, (_, bands), shingles in zip(ids, urls, rows, sets, strict=True):
            if (share := jaccard(own, shingles)) >= least:
                yield Copy(doc_id, url, share, bands, "", "")


def _with_outcomes(chain: Chain, copies: list[Copy]) -> Iterator[Copy]:
    """Yields copies with what `consolidate` has made of them."""
    ids = [one.id for one in copies]
    kept = {doc_id for _, (doc_id,) in chain.rows("documents", "kept/", "id", ids, ["id"])}
    columns = ["id", "reason", "duplicate_of"]
    rejected = {doc_id: why for _, (doc_id, *why) in chain.rows("documents", "rejected/", "id", ids, columns)}
    for one in copies:
        reason, duplicate_of = rejected.get(one.id, ("", None))
        yield replace(one, outcome="kept" if one.id in kept else reason, duplicate_of=duplicate_of or "")
