"""Pages: wall and CPU-seconds of each request, with 1,000 versions and 10 million documents, and memory of the plugin.

    python -m benchmarks.pages --folder FOLDER --run STORE [--documents 10000000] [--versions 1000] [--rounds 3]

Makes a store in FOLDER, unless it is there already. The recipe `made` has documents of twelve words drawn from 100,000
texts, with measurements of the default filters, drawn at random, in files of 10,000; the stages `consolidate` and
`text_index` run on the first 200,000 as in a recipe, in this process (`stages_cpu_s`, per million documents). Its
version has copies of the files of these, so ids repeat, and the funnel counts the first copy. The recipe `smoke` has
the other versions, each with all artifacts of the run in STORE (`many_versions`), and `big` has tokens and a training
of the kept seven of ten million documents (`trace`).

Pages are requested from Airflow's API server as a logged-in user who may trigger DAGs, in one process; each request
`rounds` times after a first one, whose time is listed separately because it includes imports and a cold cache; once if
a child process answers it (`by_children`). `s` and `cpu_s` are medians; CPU-seconds include child processes.
`memory_mb` is the resident memory of the API server before the first page, when nothing of Sluice but the small module
of the plugin is imported, and after the requests; `anonymous_mb` is the part of it that is not files, such as the code
of libraries. Writes `pages.json`.
"""

import json
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import many_versions, trace
from benchmarks.harness import ROOT, keep, parser
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import Engine, open_engine
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names
from tasks.core.store import Store
from tasks.filters.catalogue import annotator
from tasks.formats.documents.document import DOCUMENT, REJECTED, with_ids_digest
from tasks.formats.documents.groups import KIND, ref_to
from tasks.formats.documents.text_index import group_name
from tasks.stages.consolidate import stage as consolidate
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
name = "{name}"
[crawl]
enabled = false
[[extract.files]]
name = "files"
kind = "text"
path = "/made/*.txt"
[text_index]
enabled = true
[place]
store = "${{SLUICE_STORE}}"
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


def make(store: Store, documents: int) -> dict[str, float]:
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
        verdicts = made(store, engine, "duplicates", duplicates_part, rows, files)
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
        "duplicates": copy("duplicates", copies),
    }
    copied_index(store, copy("documents", copies, [one.ref(role) for role, one in large.items()]), copies)
    return {name: round(value * 1e6 / base, 1) for name, value in seconds.items()}


Request = str | tuple[str, dict[str, str]]
"""An address, or that of a form with its fields."""


def by_children(versions: int) -> dict[str, Request]:
    """Returns the requests that a child process answers, by name; the page says that they take longer."""
    newest = _newest(versions)
    of = urlencode(newest)
    return {
        "a dossier, as a file": f"/dossier.zip?{of}",
        "continue a prompt": ("/generate", {**newest, "prompt": "def ", "tokens": "8"}),
        "loss of each document of a step": f"/training?{of}&step=3&weights=20",
    }


def _newest(versions: int) -> dict[str, str]:
    """Returns recipe and version of the newest of the versions that adopt."""
    last = many_versions.version_of(versions - many_versions.TAKEDOWNS - 1)
    return {"recipe": many_versions.NAME, "version": last}


def of_versions(versions: int) -> dict[str, Request]:
    """Returns the requests about versions, by name."""
    many, first, newest = many_versions.NAME, many_versions.RUN, _newest(versions)
    of, large = urlencode(newest), "recipe=big&version=dev"
    return {
        "recipes": "/",
        "recipe": f"/recipe/{many}",
        "months": f"/months?recipe={many}",
        "crawl": f"/crawl?recipe={many}",
        "crawl, a cycle": f"/crawl?recipe={many}&version={first}",
        "takedowns": f"/takedowns?recipe={many}",
        "a takedown": f"/takedowns?recipe={many}&takedown=t1",
        "preview of a takedown": (f"/takedowns?recipe={many}", {"do": "preview", "domains": "localhost", "reason": ""}),
        "preview of a takedown, 7 million documents": (
            "/takedowns?recipe=big",
            {"do": "preview", "urls": trace.QUERIES["kept page"], "reason": ""},
        ),
        "cost and disk": f"/costs?recipe={many}",
        "version that adopts": f"/recipe/{many}?version={newest['version']}",
        "version that all adopt": f"/recipe/{many}?version={first}",
        "version, 10 million documents": f"/recipe/{RECIPE}?version={VERSION}",
        "lineage": f"/lineage?{of}",
        "compare": f"/compare?{of}&other={first}",
        "compare, 10 million and 200,000 documents": f"/compare?recipe={RECIPE}&version={VERSION}&other={BASE}",
        "canaries": f"/canaries?{of}",
        "training": f"/training?{of}",
        "training, 7 million documents": f"/training?{large}",
        "a step": f"/training?{of}&step=3",
        "a step, 7 million documents": f"/training?{large}&step={trace.STEPS - 1}",
        "trace of a page, 7 million documents": f"/trace?{large}&what={trace.QUERIES['kept page']}",
        "trace of a step, 7 million documents": f"/trace?{large}&what={trace.QUERIES['step']}",
        "explain": ("/explain", {**newest, "text": "The Python Standard Library"}),
        "why": f"/why?{of}&url=http://elsewhere.example/",
        "an artifact that all adopt": f"/artifact/{many}/documents@{first}",
        "page of a task in Airflow": f"/airflow?dag={many}.corpus",
    }


def of_documents(documents: Artifact) -> dict[str, Request]:
    """Returns the requests about the 10 million documents, by name."""
    of = f"recipe={RECIPE}&version={VERSION}"
    middle = documents.files("rejected/")[len(documents.files("rejected/")) // 2]
    rejected = documents.table(middle, ["id"]).column("id")[0].as_py()
    kept = documents.table(middle.replace("rejected/", "kept/"), ["id", "host"]).slice(3, 1).to_pylist()[0]
    corpus = f"/corpus?{of}"
    return {
        "documents": corpus,
        "documents, by source": f"{corpus}&source=web",
        "documents, by common host": f"{corpus}&host=h1.example",
        "documents, by rare host": f"{corpus}&host={kept['host']}",
        "documents, by language": f"{corpus}&language=xh",
        "documents, by rare score range": f"{corpus}&least=0.9999999",
        "documents, by tier that none has": f"{corpus}&tier=gold",
        "documents, by host that none has": f"{corpus}&host=nowhere.example",
        "documents, by order of score": f"{corpus}&order=-prose_score",
        "documents, by language and order of hosts": f"{corpus}&language=xh&order=host",
        "rejected": f"{corpus}&fate=rejected",
        "rejected, by order of score": f"{corpus}&fate=rejected&order=-prose_score",
        "rejected, by reason": f"{corpus}&fate=rejected&reason=gopher_quality_few_letters",
        "title or URL contains a rare part": f"{corpus}&text=Title 9999999",
        "words, common": f"{corpus}&text=w1&within=text",
        "words, common, by order of score": f"{corpus}&text=w1&within=text&order=-prose_score",
        "words, three": f"{corpus}&text=w7 w77 w777&within=text",
        "words, a phrase": f'{corpus}&text="w2 w3"&within=text',
        "words, rare": f"{corpus}&text=w19999 w19998&within=text",
        "words, with language and host": f"{corpus}&text=w5&within=text&language=de&host=h2.example",
        "a kept document": f"/document?{of}&id={kept['id']}",
        "a rejected document": f"/document?{of}&id={rejected}",
        "duplicates": f"/duplicates?{of}",
        "filters": f"/filters?{of}",
        "filters, other limits": f"/filters?{of}&limits.gopher_quality.min_words=100",
    }


def served(folder: Path, stages: Sequence[tuple[str, int, Mapping[str, Request]]]) -> dict[str, Any]:
    """Returns what `benchmarks.pages_server` prints in a process of its own, with Airflow's home in `folder`.

    Args:
        folder: folder of the store.
        stages: name of what is measured after some requests, times of each of them after the first one, the requests.
    """
    home = folder / "airflow"
    home.mkdir(exist_ok=True)
    shutil.copy(ROOT / "airflow.cfg", home)
    secret = secrets.token_hex(32)
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "SLUICE_RECIPES": str(folder / "recipes"),
    }
    command = [sys.executable, "-m", "benchmarks.pages_server"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(stages), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Makes the store and measures the pages."""
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--run", type=Path, required=True, help="store of a run of the recipe smoke")
    options.add_argument("--documents", type=int, default=10_000_000)
    options.add_argument("--versions", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", default="", help="pattern of the names of the requests, from their beginning on")
    given = options.parse_args()
    os.environ["SLUICE_STORE"] = str(given.folder / "store")
    store = Store(os.environ["SLUICE_STORE"])
    seconds = make_all(store, given)
    documents = Artifact.open_at(store, ArtifactId(f"{RECIPE}/documents", VERSION))
    stages = (
        ("after answers of children", 1, by_children(given.versions)),
        ("after requests about versions", given.rounds, of_versions(given.versions)),
        ("after requests about documents, too", given.rounds, of_documents(documents)),
    )
    chosen = [
        (stage, rounds, {name: request for name, request in asked.items() if re.match(given.only, name)})
        for stage, rounds, asked in stages
    ]
    found = served(given.folder, chosen)
    longer = {name: found["requests"].pop(name) for name in chosen[0][2]}
    index = Artifact.open_at(store, ArtifactId(f"{RECIPE}/text_index", VERSION))
    keep(
        "pages",
        {
            "versions": given.versions,
            "documents": given.documents,
            "bytes": {"documents": documents.record.bytes, "text_index": index.record.bytes},
            "kept": documents.record.rows_out,
            **({"stages_cpu_s": seconds} if seconds else {}),
            "memory_mb": found["memory_mb"],
            "anonymous_mb": found["anonymous_mb"],
            "requests": found["requests"],
            "by_children": longer,
        },
    )


def make_all(store: Store, given: Any) -> dict[str, float]:
    """Makes what is not there; returns the seconds of two stages if they ran."""
    seconds = {}
    if Artifact.find(store, ArtifactId(f"{RECIPE}/text_index", VERSION)) is None:
        seconds = make(store, given.documents)
    many_versions.make(given.run, given.folder, given.versions)
    if Artifact.find(store, ArtifactId("big/checkpoint", "dev")) is None:
        trace.build(store, given.documents)
    for name in (RECIPE, "big"):
        (given.folder / "recipes" / f"{name}.toml").write_text(TEXT.format(name=name))
    return seconds


if __name__ == "__main__":
    main()
