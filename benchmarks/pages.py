"""Pages: wall and CPU-seconds of each request, in a recipe of 1,000 versions and 10 million documents.

    python -m benchmarks.pages --folder FOLDER [--documents 10000000] [--versions 1000] [--rounds 3]

Makes a store in FOLDER, unless it is there already: documents of twelve words drawn from 100,000 texts, with
measurements of the default filters, drawn at random, in files of 10,000; the stages `consolidate` and `text_index` then
run on the first 200,000 as in a recipe, in this process (`stages_cpu_s`, per million documents). The version has copies
of the files of these, so ids repeat, and the funnel counts the first copy. The other versions are records that refer to
a small artifact. Pages are called in this process, as the API server calls them, without its login; each request
`rounds` times after a first one, whose time is listed separately because it includes imports and a cold cache. `s` and
`cpu_s` are medians. Writes `pages.json`.
"""

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.harness import keep, parser
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.commit import adopt, commit
from tasks.core.config import Config
from tasks.core.engine import Engine, open_engine
from tasks.core.groups import KIND, ref_to
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names
from tasks.core.store import Store
from tasks.filters.catalogue import annotator
from tasks.formats.documents.document import DOCUMENT, REJECTED, with_ids_digest
from tasks.formats.documents.text_index import group_name
from tasks.stages.consolidate import stage as consolidate
from tasks.stages.consolidate.aligned_inputs import RECAPTURED
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup.verdicts import DUPLICATES
from tasks.stages.text_index import TextIndexConfig
from tasks.stages.text_index import stage as text_index

RECIPE = "made"
VERSION, BASE = "2026.10", "base"
BASE_DOCUMENTS = 200_000
"""Documents that are made; a larger version has copies of their files."""
PER_FILE = 10_000
ANNOTATORS = ("language", "gopher_quality", "gopher_repetition", "prose_score", "pii")
_HOSTS, _WORDS, _LENGTH, _TEXTS = 200_000, 20_000, 12, 100_000
_AUDIT = b'{"jaccard": 0.8, "width": 0.05, "sizes": [], "largest": [], "below": {"pairs": 0, "shown": []}, '
_AUDIT += b'"above": {"pairs": 0, "shown": []}, "sources": [], "domains": [], "domain_count": 0}'

TEXT = """
name = "made"
[crawl]
enabled = false
[[extract.files]]
name = "files"
kind = "text"
path = "/made/*.txt"
[text_index]
enabled = true
[place]
store = "{store}"
"""


def draws(name: str) -> np.random.Generator:
    """Returns the random numbers of a part."""
    return np.random.default_rng(int(name.split("-")[1]))


def ids_of(name: str, rows: int) -> list[str]:
    """Returns the ids of the documents of a part."""
    digits = draws(name).bytes(16 * rows).hex()
    return sorted(digits[at : at + 32] for at in range(0, len(digits), 32))


@cache
def texts() -> list[str]:
    """Returns the texts, from which the documents draw."""
    picked = np.random.default_rng(0).zipf(1.2, (_TEXTS, _LENGTH)) % _WORDS
    return [" ".join(f"w{word}" for word in row) for row in picked.tolist()]


def documents_part(part: Part, rows: int) -> None:
    """Writes the documents of one part."""
    draw = draws(part.name)
    number = int(part.name.split("-")[1]) * rows
    names = [f"h{host}.example" for host in np.minimum(draw.zipf(1.3, rows), _HOSTS).tolist()]
    columns: dict[str, Any] = {
        "id": ids_of(part.name, rows),
        "host": names,
        "url": [f"https://{host}/{number + at}" for at, host in enumerate(names)],
        "title": [f"Title {number + at}" for at in range(rows)],
        "text": pa.array(texts()).take(pa.array(draw.integers(0, _TEXTS, rows))),
        "source": ["web"] * rows,
        **{name: [""] * rows for name in ("record_id", "language_hint", "payload_digest", "warc_file")},
    }
    table = pa.table({field.name: columns.get(field.name) or pa.nulls(rows, field.type) for field in DOCUMENT})
    part.count_in(rows)
    part.table("documents", table.cast(DOCUMENT))
    part.table("rejected", REJECTED.empty_table(), out=False)


def measured_part(name: str, part: Part, rows: int) -> None:
    """Writes an annotator's measurements of one part."""
    values = measurements(name, rows).take(pa.array(draws(part.name).permutation(rows)))
    table = pa.table({"error": pa.nulls(rows, pa.string()), name: values})
    part.table(KIND, with_ids_digest(table, pa.chunked_array([ids_of(part.name, rows)])), out=False)
    part.metric(POISON, 0)


@cache
def measurements(name: str, rows: int) -> pa.StructArray:
    """Returns an annotator's column, which each part has in another order."""
    kind, draw = annotator(name, {}).type(), np.random.default_rng(len(name))
    return pa.StructArray.from_arrays([_values(draw, field, rows) for field in kind], fields=list(kind))


def _values(draw: np.random.Generator, field: pa.Field, rows: int) -> pa.Array:
    """Returns values of which most pass the default limits."""
    if field.name == "label":
        return pa.array(np.array(["en", "de", "fr", "es", "it", "nl", "pl", "xh"])[draw.zipf(2, rows) % 8].tolist())
    if pa.types.is_list(field.type):
        return pa.array([[]] * rows, field.type)
    if pa.types.is_boolean(field.type):
        return pa.array(draw.random(rows) < 0.7)
    if field.name == "mean_word":
        return pa.array(draw.normal(5, 1, rows), field.type)
    if pa.types.is_floating(field.type):
        return pa.array(draw.random(rows), field.type)
    large = {"words": 6, "letters": 6, "chars": 8, "lines": 3, "paragraphs": 3, "stop_words": 1.6}
    return pa.array(_counts(draw, large.get(field.name, 0.5), rows), field.type)


def _counts(draw: np.random.Generator, scale: float, rows: int) -> NDArray[np.int64]:
    return np.exp(draw.normal(scale, 0.8, rows)).astype(np.int64)


def groups_part(part: Part, _: int) -> None:
    """Writes the names of the groups."""
    part.table("groups", pa.table({"group": list(ANNOTATORS)}), out=False)


def duplicates_part(part: Part, rows: int) -> None:
    """Writes dedup's verdicts on one part: no document has a copy."""
    columns = {field.name: pa.nulls(rows, field.type) for field in DUPLICATES} | {
        "id": pa.array(ids_of(part.name, rows))
    }
    part.table("duplicates", pa.table(columns).cast(DUPLICATES), out=False)


def made(
    store: Store, engine: Engine, kind: str, write: Callable[..., None], rows: int, files: int,
    refs: tuple[InputRef, ...] = (), metrics: Mapping[str, float] = {},
) -> Artifact:  # fmt: skip
    """Commits an artifact whose parts a function writes, unless it exists."""
    address = ArtifactId(f"{RECIPE}/{kind}", BASE)
    if existing := Artifact.find(store, address):
        return existing
    output = Output(store, address, "0" * 64)
    output.map_parts(engine, write, [PartSpec(name, rows) for name in part_names(files)], conserved=False)
    if kind == "duplicates":
        with output.part("audit", conserved=False) as part, part.file("audit.json") as file:
            file.write(_AUDIT)
    return commit(output, kind, 1, Config(), list(refs), Report(metrics=dict(metrics)))


def staged(store: Store, engine: Engine, kind: str, stage: Any, config: Config, **inputs: Artifact) -> Artifact:
    """Runs a stage and commits its artifact, unless it exists."""
    address = ArtifactId(f"{RECIPE}/{kind}", BASE)
    if existing := Artifact.find(store, address):
        return existing
    output = Output(store, address, "0" * 64)
    report = stage.run(config, Inputs(dict(inputs)), output, engine)
    refs = [artifact.ref(role) for role, artifact in inputs.items()]
    return commit(output, kind, stage.VERSION, config, refs, report)


def copied(
    store: Store, kind: str, copies: int, refs: Sequence[InputRef] = (), metrics: Mapping[str, float] = {}
) -> Artifact:
    """Commits an artifact with `copies` copies of each part of the base version, under names of their own."""
    address = ArtifactId(f"{RECIPE}/{kind}", VERSION)
    if existing := Artifact.find(store, address):
        return existing
    base = Artifact.open_at(store, ArtifactId(f"{RECIPE}/{kind}", BASE))
    output, files = Output(store, address, "0" * 64), len([p for p in base.parts if p.name.startswith("part-")])
    for part in base.parts:
        number = int(part.name.split("-")[1]) if part.name.startswith("part-") else None
        names = (
            [part.name] if number is None else [part_names(files * copies)[number + at * files] for at in range(copies)]
        )
        contents = {entry.path: base.read(entry.path) for entry in part.files}
        for name in names:
            with output.part(name, conserved=False) as target:
                target.count_in(part.rows_in)
                target.count_out(part.rows_out)
                for entry in part.files:
                    with target.file(entry.path.replace(part.name, name), rows=entry.rows) as file:
                        file.write(contents[entry.path])
    config = ConsolidateConfig() if kind == "documents" else Config()
    return commit(output, kind, 1, config, list(refs), Report(metrics=dict(metrics)))


def copied_index(store: Store, documents: Artifact, copies: int) -> Artifact:
    """Commits the index of words of the copies: a file for each, which refers to its own documents."""
    address = ArtifactId(f"{RECIPE}/text_index", VERSION)
    if existing := Artifact.find(store, address):
        return existing
    base = Artifact.open_at(store, ArtifactId(f"{RECIPE}/text_index", BASE))
    output, kept = Output(store, address, "0" * 64), documents.files("kept/")
    [path] = base.files("words/")
    for number in range(copies):
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as scratch:
            scratch.write(base.read(path))
            scratch.flush()
            with closing(sqlite3.connect(scratch.name)) as connection:
                rows = connection.execute("SELECT first FROM files ORDER BY first").fetchall()
                own = kept[number * len(rows) : (number + 1) * len(rows)]
                connection.executemany(
                    "UPDATE files SET path = ? WHERE first = ?",
                    [(p, first) for p, (first,) in zip(own, rows, strict=True)],
                )
                connection.commit()
            name = group_name(number, copies)
            with (
                output.part(name, conserved=False) as part,
                part.file(f"words/{name}.sqlite", rows=base.record.rows_out) as file,
            ):
                part.count_out(base.record.rows_out)
                file.write(Path(scratch.name).read_bytes())
    return commit(output, "text_index", 1, TextIndexConfig(enabled=True), [documents.ref("documents")], Report())


def make(store: Store, documents: int, versions: int) -> dict[str, float]:
    """Makes the store; returns the seconds of the two stages per million documents."""
    copies = max(1, documents // BASE_DOCUMENTS)
    base = documents // copies
    files = max(1, base // PER_FILE)
    rows, seconds = base // files, {}
    with open_engine(workers=0) as engine:
        extracted = made(store, engine, "extracted", documents_part, rows, files)
        groups = {
            name: made(
                store, engine, f"{KIND}/{name}", partial(measured_part, name), rows, files, metrics={POISON: 0.0}
            )
            for name in ANNOTATORS
        }
        refs = tuple(ref_to(group, name) for name, group in groups.items())
        attributes = made(store, engine, "attributes", groups_part, 0, 1, refs)
        verdicts = made(store, engine, "duplicates", duplicates_part, rows, files, metrics={RECAPTURED: 0.0})
        inputs = {"extracted": extracted, "attributes": attributes, "duplicates": verdicts}
        begin = time.process_time()
        found = staged(store, engine, "documents", consolidate, ConsolidateConfig(), **inputs)
        seconds["consolidate"] = time.process_time() - begin
        begin = time.process_time()
        staged(store, engine, "text_index", text_index, TextIndexConfig(enabled=True), documents=found)
        seconds["text_index"] = time.process_time() - begin
    copy = partial(copied, store)
    groups = {name: copy(f"{KIND}/{name}", copies, metrics={POISON: 0.0}) for name in ANNOTATORS}
    large = {
        "extracted": copy("extracted", copies),
        "attributes": copy("attributes", 1, [ref_to(group, name) for name, group in groups.items()]),
        "duplicates": copy("duplicates", copies, metrics={RECAPTURED: 0.0}),
    }
    copied_index(store, copy("documents", copies, [one.ref(role) for role, one in large.items()]), copies)
    small = Output(store, ArtifactId(f"{RECIPE}/tokenizer", "v0000"), "1" * 64)
    with small.part("vocabulary", conserved=False) as part, part.file("vocabulary.json") as file:
        file.write(b"{}")
    first = commit(small, "tokenizer", 1, Config(), [], Report())
    for number in range(1, versions - 2):
        adopt(first, ArtifactId(f"{RECIPE}/tokenizer", f"v{number:04d}"), [])
    return {name: round(value * 1e6 / base, 1) for name, value in seconds.items()}


def requests(documents: Artifact) -> dict[str, str]:
    """Returns the addresses by name."""
    of = f"recipe={RECIPE}&version={VERSION}"
    middle = documents.files("rejected/")[len(documents.files("rejected/")) // 2]
    rejected = documents.table(middle, ["id"]).column("id")[0].as_py()
    kept = documents.table(middle.replace("rejected/", "kept/"), ["id", "host"]).slice(3, 1).to_pylist()[0]
    corpus = f"/corpus?{of}"
    return {
        "recipes": "/",
        "recipe": f"/recipe/{RECIPE}",
        "version": f"/recipe/{RECIPE}?version={VERSION}",
        "documents": corpus,
        "documents, by source": f"{corpus}&source=web",
        "documents, by common host": f"{corpus}&host=h1.example",
        "documents, by rare host": f"{corpus}&host={kept['host']}",
        "documents, by language": f"{corpus}&language=xh",
        "documents, by rare score range": f"{corpus}&least=0.9999999",
        "documents, by tier that none has": f"{corpus}&tier=gold",
        "documents, by host that none has": f"{corpus}&host=nowhere.example",
        "rejected": f"{corpus}&fate=rejected",
        "rejected, by reason": f"{corpus}&fate=rejected&reason=gopher_quality_few_letters",
        "title or URL contains": f"{corpus}&text=Title 9999999",
        "words, common": f"{corpus}&text=w1&within=text",
        "words, three": f"{corpus}&text=w7 w77 w777&within=text",
        "words, rare": f"{corpus}&text=w19999 w19998&within=text",
        "words, with language and host": f"{corpus}&text=w5&within=text&language=de&host=h2.example",
        "a kept document": f"/document?{of}&id={kept['id']}",
        "a rejected document": f"/document?{of}&id={rejected}",
        "duplicates": f"/duplicates?{of}",
        "filters": f"/filters?{of}",
        "filters, other limits": f"/filters?{of}&limits.gopher_quality.min_words=100",
    }


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Returns the times of all requests."""
    os.environ["SLUICE_RECIPES"] = str(folder / "recipes")
    os.environ.setdefault("AIRFLOW_HOME", str(folder / "airflow"))
    from airflow.api_fastapi.core_api.security import get_user
    from sluice_ui import access, app, filters
    from sluice_ui.trigger import Trigger
    from starlette.testclient import TestClient

    app.app.dependency_overrides[get_user] = lambda: None
    access.may_read = lambda *_: True
    setattr(filters, "offer", lambda _user, dag: Trigger(dag, "", ""))  # noqa: B010
    documents = Artifact.open_at(Store(str(folder / "store")), ArtifactId(f"{RECIPE}/documents", VERSION))
    found: dict[str, Any] = {}
    with TestClient(app.app) as client:
        for name, address in requests(documents).items():
            times, cpu = [], []
            for _ in range(rounds + 1):
                begin, used = time.perf_counter(), time.process_time()
                answer = client.get(address)
                times.append(time.perf_counter() - begin)
                cpu.append(time.process_time() - used)
                assert answer.status_code == 200, (name, answer.status_code, answer.text[:500])
            found[name] = {
                "s": round(statistics.median(times[1:]), 3),
                "cpu_s": round(statistics.median(cpu[1:]), 3),
                "first_s": round(times[0], 3),
                "bytes": len(answer.content),
            }
            print(name, found[name], flush=True)
    return found


def main() -> None:
    """Makes the store and measures the pages."""
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--documents", type=int, default=10_000_000)
    options.add_argument("--versions", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    store, seconds = Store(str(given.folder / "store")), {}
    if Artifact.find(store, ArtifactId(f"{RECIPE}/text_index", VERSION)) is None:
        seconds = make(store, given.documents, given.versions)
    (given.folder / "recipes").mkdir(exist_ok=True)
    (given.folder / "recipes" / f"{RECIPE}.toml").write_text(TEXT.format(store=given.folder / "store"))
    artifacts = {
        kind: Artifact.open_at(store, ArtifactId(f"{RECIPE}/{kind}", VERSION)) for kind in ("documents", "text_index")
    }
    keep(
        "pages",
        {
            "versions": given.versions,
            "documents": given.documents,
            "bytes": {kind: artifact.record.bytes for kind, artifact in artifacts.items()},
            "kept": artifacts["documents"].record.rows_out,
            **({"stages_cpu_s": seconds} if seconds else {}),
            "requests": measure(given.folder, given.rounds),
        },
    )


if __name__ == "__main__":
    main()
