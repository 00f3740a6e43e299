"""Stage `examples`: rows of files, and document chunks -> tokenized examples for a fine-tuning.

Reads the configured files of JSON or Parquet (one example per row), the selected chunks (`chunks` of the same version,
or `other_chunks`), the tokenizer, and the takedowns in force (`takedowns`), whose documents are excluded. The text of a
chunk is learned as the response to its document's title and its headings.

Writes `examples/<part>.arrow` and `heldout/<part>.arrow` with the held-out examples, one part per file and per part of
the chunks, and `examples.json` (`tasks.formats.documents.examples`). A row that cannot be read is quarantined with its
cause (`quarantine/`); a row that is longer than a sequence, is not selected, or has no learned tokens is counted as
rejected, and so is a row of a file with an empty answer, or that repeats an earlier row of its file, and a preference
between answers that are equal for the model.
"""

import glob
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import Tokenizer

from tasks.core import parquet
from tasks.core.artifact import EXTERNAL, Artifact, ArtifactFolder
from tasks.core.clients import hub
from tasks.core.config import canonical_json
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names
from tasks.formats.documents import examples
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.chunks import heading_path
from tasks.formats.documents.document import is_heldout
from tasks.formats.documents.external_files import DatasetFiles, SourceFile, find
from tasks.formats.documents.json_rows import detect_form, open_text
from tasks.formats.documents.json_rows import rows as json_rows
from tasks.formats.documents.parquet_rows import read_rows
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones, tombstones_of
from tasks.formats.hooks import External, Hooks
from tasks.stages.finetune import ExamplesConfig
from tasks.stages.finetune.encoding import FILE, ExampleEncoder, eos_id, prompt_of
from tasks.stages.finetune.rows import READERS
from tasks.stages.finetune.templates import DialogueTemplate, Segments, template_record

VERSION = 4
_COUNTED = ("tokens", "learned_tokens", "heldout")
TOO_LONG, NOTHING_TO_LEARN = "too_long", "nothing_to_learn"
EMPTY_ANSWER, DUPLICATE, EQUAL_ANSWERS = "empty_answer", "duplicate", "equal_answers"

Rows = Iterator[tuple[dict[str, Any], list[Segments], str]]
"""Origin of an example, its texts, and the key that determines whether it is held out."""

NOT_CHOSEN = "not_chosen"
_BATCH = 512
_NAMED = 300
"""Characters of the names of a row's fields in a message."""
_ORIGIN_COLUMNS = ("document", "url", "source", "pages", "boxes")


def external(config: ExamplesConfig) -> dict[str, External]:
    """Returns the datasets of the hub, by role `files:<number of the pattern>`, and all other files in one role."""
    datasets = {
        _role(number): DatasetFiles(pattern, _found)
        for number, pattern in enumerate(config.files)
        if hub.is_hub(pattern)
    }
    patterns = [pattern for pattern in config.files if not hub.is_hub(pattern)]
    return {"files": [file.path for pattern in patterns for file in _found(pattern)], **datasets}


HOOKS = Hooks(external=external)


def _role(number: int) -> str:
    return f"files:{number}"


def _found(pattern: str) -> list[SourceFile]:
    """Returns the files of a pattern; a relative path is one on this machine, and that of a file is no pattern."""
    if "://" not in pattern:
        pattern = os.path.abspath(glob.escape(pattern) if os.path.isfile(pattern) else pattern)
    return find(pattern, "examples.files")


def _files(config: ExamplesConfig, inputs: Inputs) -> list[SourceFile]:
    """Returns all files, in the order of the patterns; datasets at the commit that the run has resolved.

    Raises:
        InputError: a pattern matches no file, or two match one.
    """
    files = []
    for number, pattern in enumerate(config.files):
        ref = inputs.external.get(_role(number))
        files += _found(ref.address.removeprefix(EXTERNAL) if ref else pattern)
    counts = Counter(file.path for file in files)
    if twice := sorted(path for path, count in counts.items() if count > 1):
        raise InputError(f"examples.files: two patterns match {twice[0]}", "name each file once")
    return files


def run(config: ExamplesConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Tokenizes all rows; raises InputError if too many cannot be read, or if no example remains."""
    files, tokenizer = _files(config, inputs), inputs["tokenizer"]
    names = part_names(len(files))
    template = template_record(config, tokenizer)
    of_files = (partial(rows_of_file, config, file) for file in files)
    specs = [PartSpec(name, rows) for name, rows in zip(names, of_files, strict=True)]
    if config.reads_chunks:
        specs += _chunk_parts(config, inputs)
    records = output.map_parts(engine, partial(make_part, config, tokenizer.folder, template), specs)
    output.check_poison()
    count, read = (sum(getattr(record, name) for record in records) for name in ("rows_out", "rows_in"))
    totals = {name: sum(record.metrics.get(name, 0) for record in records) for name in _COUNTED}
    if count <= totals["heldout"]:
        raise InputError(
            f"none of the {read} rows became an example to learn from",
            "see seq_len, the kind of the rows, [examples.chunks] and heldout_share",
        )
    if "summary" not in output.committed:
        with output.part("summary", conserved=False) as part, part.file(examples.SUMMARY) as file:
            file.write(
                (
                    canonical_json(_summary(config, tokenizer, template, dict(zip(names, files, strict=True)))) + "\n"
                ).encode()
            )
    return _report(count, read, totals)


def _chunk_parts(config: ExamplesConfig, inputs: Inputs) -> list[PartSpec]:
    """Returns the parts of the chunks; raises InputError if there are no chunks."""
    role = "chunks" if config.own_chunks else "other_chunks"
    assert config.chunks is not None
    if role not in inputs:
        raise InputError(
            f"[examples.chunks] of: no version of {config.chunks.of} is complete", "make chunks, or name others"
        )
    chunks = inputs[role]
    tombstones = tombstones_of(inputs)
    return [
        PartSpec(f"{CHUNKS}-{name}", partial(rows_of_chunks, config, chunks.folder, name, tombstones))
        for name in chunks.names(f"{CHUNKS}/")
    ]


def _report(count: int, read: int, totals: dict[str, float]) -> Report:
    tokens, learned, heldout = (totals[name] for name in ("tokens", "learned_tokens", "heldout"))
    return Report(
        metrics={"examples": count - heldout, **totals},
        note=f"{count:,} of {read:,} rows, {heldout:,.0f} of them held out; "
        f"{learned:,.0f} of {tokens:,.0f} tokens are learned",
    )


def _summary(
    config: ExamplesConfig, artifact: Artifact, template: dict[str, Any], files: Mapping[str, SourceFile]
) -> dict[str, Any]:
    data = artifact.read(FILE)
    tokenizer = Tokenizer.from_str(data.decode())
    return {
        "kind": config.kind,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_id": eos_id(artifact.folder, tokenizer),
        "tokenizer_sha256": sha256_of(data),
        "seq_len": config.seq_len,
        "template": template,
        "files": {name: Path(file.path).name for name, file in files.items()},
    }


def make_part(
    config: ExamplesConfig,
    tokenizer: ArtifactFolder,
    template: dict[str, Any],
    part: Part,
    rows: Callable[[DialogueTemplate, Part], Rows],
) -> None:
    """Tokenizes the rows of one file or part; runs on a worker of the engine."""
    encoder = ExampleEncoder(tokenizer, template)
    with (
        part.file(f"{examples.FOLDER}/{part.name}.arrow") as learned,
        part.file(f"{examples.HELDOUT}/{part.name}.arrow") as heldout,
        examples.Writer(learned) as learned_writer,
        examples.Writer(heldout) as heldout_writer,
    ):
        for origin, texts, key in rows(encoder.template, part):
            example = encoder.example(texts)
            if reason := _rejected(example, config):
                part.reject(reason)
                continue
            part.count_out()
            if is_heldout(key, config.heldout_share):
                part.metric("heldout", 1)
                heldout_writer.add({**origin, **example})
            else:
                part.metric("tokens", len(example["tokens"]))
                part.metric("learned_tokens", sum(example["learned"]))
                learned_writer.add({**origin, **example})


def _rejected(example: dict[str, Any], config: ExamplesConfig) -> str:
    if sum(example["lengths"]) > config.seq_len:
        return TOO_LONG
    first, tokens = example["lengths"][0], example["tokens"]
    if config.kind == examples.PREFERENCES and tokens[:first] == tokens[first:]:
        return EQUAL_ANSWERS
    return "" if all(example["any_learned"]) else NOTHING_TO_LEARN


def rows_of_file(config: ExamplesConfig, file: SourceFile, template: DialogueTemplate, part: Part) -> Rows:
    """Yields the rows of a file: their origin (line and id), their texts, and their prompt.

    Counts all rows, quarantines those that cannot be read, and rejects those with an empty answer and those that equal
    an earlier row in all fields, including `id`. Keeps 16 bytes per row in memory for the comparison.
    """
    seen: set[bytes] = set()
    for number, read in _rows(file):
        part.count_in()
        row: Any = None
        try:
            row = read()
            if not isinstance(row, dict):
                raise ValueError("the row is no JSON object")
            dialogues = READERS[config.kind](_renamed(row, config.fields))
            texts = [text for dialogue in dialogues for text in template.texts(dialogue)]
            stated = row.get(config.fields.get("id", "id"))
            name = "" if stated is None else str(stated)
            for text in (name, *(text for segments_of_text in texts for text, _ in segments_of_text)):
                text.encode()  # raises for an unpaired surrogate, which JSON escapes can contain
            digest = blake2b(json.dumps(row, sort_keys=True, default=str).encode(), digest_size=16).digest()
        except (ValueError, RecursionError) as error:
            part.quarantine(f"{Path(file.path).name}:{number}", _with_fields(error, row))
            continue
        if digest in seen:
            part.reject(DUPLICATE)
        elif dialogues[0].has_empty_answer:
            part.reject(EMPTY_ANSWER)
        else:
            yield {"line": number, "id": name}, texts, prompt_of(texts)
        seen.add(digest)


def _rows(file: SourceFile) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Yields for each row its number from 1, and a function that parses it, which raises ValueError.

    Raises:
        InputError: the file cannot be read, or is of another format.
    """
    with file.readable():
        path = file.local()
        if parquet.is_parquet(path):
            yield from ((number, partial(_without_nulls, row)) for number, row in enumerate(read_rows(path), 1))
            return
        form = detect_form(path, file.name)
        with open_text(path, form) as text:
            for number, row in enumerate(json_rows(text, form, None), 1):
                if row and row.strip():
                    yield number, partial(json.loads, row)


def _without_nulls(value: Any) -> Any:
    """Returns a value without null fields: in Parquet every message has the fields that any message has."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def _renamed(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Returns a row with the fields that the recipe names differently under the names of `rows.FIELDS`."""
    return {**row, **{name: row[other] for name, other in fields.items() if other in row}}


def _with_fields(error: Exception, row: Any) -> Exception:
    """Returns the error with the fields that the row has, which tell what examples.fields has to map."""
    if not isinstance(row, dict):
        return error
    names = ", ".join(sorted(map(str, row))) or "none"
    return ValueError(f"{error} (fields of the row: {names[:_NAMED]})")


def rows_of_chunks(
    config: ExamplesConfig,
    chunks: ArtifactFolder,
    name: str,
    tombstones: Tombstones,
    template: DialogueTemplate,
    part: Part,
) -> Rows:
    """Yields the selected chunks of a part: their origin, their text, and the id of their document.

    Counts all chunks, and rejects those that are not selected and those of documents that are taken down.
    """
    assert config.chunks is not None
    conditions = config.chunks.conditions
    table = chunks.table(f"{CHUNKS}/{name}.parquet")
    taken_down = tombstones.mask(table.select(["document", "url"]).rename_columns(["id", "url"]))
    number = 0
    for batch in table.append_column("gone", pa.array(taken_down)).to_batches(max_chunksize=_BATCH):
        for chunk in batch.to_pylist():
            number += 1
            part.count_in()
            if chunk["gone"]:
                part.reject(TAKEDOWN)
            elif any(chunk[column] not in values for column, values in conditions.items()):
                part.reject(NOT_CHOSEN)
            else:
                origin = {"line": number, "id": chunk["id"], **{column: chunk[column] for column in _ORIGIN_COLUMNS}}
                question = heading_path(chunk["title"], chunk["sections"])
                try:
                    texts = template.texts(template.answer(question, chunk["text"][chunk["body"] :]))
                except ValueError as error:
                    part.quarantine(chunk["id"], error)
                    continue
                yield origin, texts, chunk["document"]
