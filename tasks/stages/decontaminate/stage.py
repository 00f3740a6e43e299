"""Stage decontaminate: documents and evaluation sets -> which documents contain which items.

Reads `extracted` (documents/) and the files of the sets. Writes

    index/                  items and n-grams of the sets (`index`)
    hits/ counts/           per part, where n-grams occur and in how many texts (`scan`)
    common.parquet          the n-grams that are common in the corpus: number, and hash
    contamination/ matches/ per part, the verdicts (`tasks.formats.documents.document`)
    sets.parquet            per set: items, those too short or common, those found, documents (`judge.SETS`)
    report.html             the same for people, with the largest matches; also in MLflow, beside `matches.csv`

No document is dropped or changed: that is up to consolidate.

    index    in this process          items -> n-grams
    scan     per part, on workers     the one pass over the texts
    common   in this process          which n-grams count nowhere
    judge    per part, on workers     shares and spans

Memory of this process: some 30 bytes per n-gram of the sets, and up to 16 x (`common` + 1) for each that occurs.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.core.store import Store
from tasks.formats.documents.document import parts_of
from tasks.stages.decontaminate.config import DecontaminateConfig
from tasks.stages.decontaminate.index import ITEMS_FILE, NgramIndex, build_index, files_of, read_items, write_index
from tasks.stages.decontaminate.judge import judge_part, looked_for
from tasks.stages.decontaminate.report import PAGE, _metrics, _note, as_csv, collect, write_report
from tasks.stages.decontaminate.scan import COUNTS, fewest, scan_part

VERSION = 1

COMMON_FILE = "common.parquet"
_COMMON = pa.schema([pa.field("ngram", pa.int64(), nullable=False), pa.field("hash", pa.uint64(), nullable=False)])


def external(config: DecontaminateConfig) -> dict[str, list[str]]:
    """Returns the files of the sets, as local paths, by role `evaluation:<set>`; their bytes are in the fingerprint."""
    return {f"evaluation:{one.name}": [file.local() for file in files_of(one)] for one in config.sets}


def run(config: DecontaminateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Looks for the items in all documents.

    Raises:
        InputError: there is no document, or a set cannot be read (see `items.read_items`).
    """
    extracted = inputs["extracted"]
    names = parts_of(extracted)
    store, folder = output.store, output.address.path
    if "index" not in output.committed:
        found = build_index(config, (item for one in config.sets for item in read_items(one)))
        with output.part("index", conserved=False) as part:
            write_index(part, *found)
    work = partial(_scan, config.ngram, config.common, store, folder, extracted.folder)
    output.map_parts(engine, work, [PartSpec(f"scan-{name}", name) for name in names], conserved=False)
    if "common" not in output.committed:
        _write_common(config, names, output)
    work = partial(_judge, config.ngram, store, folder, extracted.folder)
    output.map_parts(engine, work, [PartSpec(name, name) for name in names])
    index = NgramIndex.read(config.ngram, store, folder)
    items = parquet.read(store.local(f"{folder}/{ITEMS_FILE}"))
    result = collect(items, looked_for(index, _common(store, folder, index)), store, folder, names)
    if "report" not in output.committed:
        with output.part("report", conserved=False) as part:
            write_report(part, config, items, result)
    output.log_file("report.html", store.read(f"{folder}/{PAGE}"))
    output.log_file("matches.csv", as_csv(result.largest))
    return Report(metrics=_metrics(result), note=_note(result))


def _scan(ngram: int, common: int, store: Store, folder: str, extracted: ArtifactFolder, part: Part, name: str) -> None:
    scan_part(NgramIndex.read(ngram, store, folder), extracted, common, ngram, part, name)


def _judge(ngram: int, store: Store, folder: str, extracted: ArtifactFolder, part: Part, name: str) -> None:
    index = NgramIndex.read(ngram, store, folder)
    judge_part(index, _common(store, folder, index), extracted, store, folder, part, name)


def _write_common(config: DecontaminateConfig, names: Iterable[str], output: Output) -> None:
    """Writes the n-grams that occur in more than `common` texts, over all parts."""
    store, folder = output.store, output.address.path
    counts = COUNTS.empty_table()
    for name in names:
        counts = fewest([counts, parquet.read(store.local(f"{folder}/counts/{name}.parquet"))], config.common + 1)
    numbers, texts = np.unique(counts.column("ngram").to_numpy(), return_counts=True)
    common = numbers[texts > config.common]
    table = pa.table([common, NgramIndex.read(config.ngram, store, folder).hashes[common]], schema=_COMMON)
    with output.part("common", conserved=False) as part, part.file(COMMON_FILE, rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3)


def _common(store: Store, folder: str, index: NgramIndex) -> NDArray[np.bool_]:
    """Returns which n-grams are common, shape (n-grams,)."""
    common = np.zeros(len(index.hashes), np.bool_)
    common[parquet.read(store.local(f"{folder}/{COMMON_FILE}")).column("ngram").to_numpy()] = True
    return common
