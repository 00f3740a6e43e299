"""Stage `examples`: rows of JSON lines -> tokenised examples for a fine-tuning.

Reads the files of the settings and the tokenizer; writes `examples/<part>.arrow`, one part per file, and
`examples.json` (`tasks.formats.examples`). Each piece of a text, as the template divides it, is tokenised by itself, so
that no token is in part learned. A row that cannot be read is set aside with its cause (`quarantine/`); one that is
longer than a sequence, or in which nothing is to be learned, is counted as rejected.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.config import canonical_json
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names
from tasks.core.store import read_outside
from tasks.formats import examples
from tasks.stages.finetune.config import ExamplesConfig
from tasks.stages.finetune.render import Segments, instruction, preference

VERSION = 1
_RENDER = {"instructions": instruction, "preferences": preference}
_Payload = tuple[ExamplesConfig, str, ArtifactFolder]


def external(config: ExamplesConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads."""
    return {"files": list(config.files)}


def run(config: ExamplesConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Tokenises each file; raises InputError where too many rows cannot be read, or none is left."""
    names, tokenizer = part_names(len(config.files)), inputs["tokenizer"]
    payloads = ((config, path, tokenizer.folder) for path in config.files)
    specs = [PartSpec(name, payload) for name, payload in zip(names, payloads, strict=True)]
    records = output.map_parts(engine, make_part, specs)
    output.check_poison()
    count, read = (sum(getattr(record, name) for record in records) for name in ("rows_out", "rows_in"))
    if not count:
        raise InputError(f"none of the {read} rows became an example", "see seq_len, and the kind of the rows")
    if "summary" not in output.committed:
        with output.part("summary", conserved=False) as part, part.file(examples.SUMMARY) as file:
            file.write((canonical_json(_summary(config, tokenizer, names)) + "\n").encode())
    tokens, learned = (sum(record.metrics.get(name, 0) for record in records) for name in ("tokens", "learned_tokens"))
    return Report(
        metrics={"examples": count, "tokens": tokens, "learned_tokens": learned},
        note=f"{count:,} of {read:,} rows, {learned:,.0f} of {tokens:,.0f} tokens are learned",
    )


def _summary(config: ExamplesConfig, artifact: Artifact, names: list[str]) -> dict[str, Any]:
    data = artifact.read("tokenizer.json")
    tokenizer = Tokenizer.from_str(data.decode())
    return {
        "kind": config.kind,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_id": _eos_id(artifact.folder, tokenizer),
        "tokenizer_sha256": sha256_of(data),
        "seq_len": config.seq_len,
        "template": config.template.model_dump(mode="json"),
        "files": {name: Path(path).name for name, path in zip(names, config.files, strict=True)},
    }


def make_part(part: Part, payload: _Payload) -> None:
    """Tokenises one file; runs on whichever worker."""
    config, path, folder = payload
    tokenizer = Tokenizer.from_str(folder.read("tokenizer.json").decode())
    tokenizer.encode_special_tokens = True  # in a text these are plain characters
    eos_id = _eos_id(folder, tokenizer)

    def rows() -> Iterator[dict[str, Any]]:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                part.count_in()
                try:
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("the line is no JSON object")
                    texts = _RENDER[config.kind](row, config.template)
                except ValueError as error:
                    part.quarantine(f"{Path(path).name}:{number}", error)
                    continue
                example = _encoded(tokenizer, texts, eos_id)
                if reason := _rejected(example, config.seq_len):
                    part.reject(reason)
                    continue
                part.metric("tokens", len(example["tokens"]))
                part.metric("learned_tokens", int(np.sum(example["learned"])))
                yield {"line": number, "id": str(row.get("id", "")), **example}

    with part.file(f"{examples.FOLDER}/{part.name}.arrow") as file:
        part.count_out(examples.write(file, rows()))


def _rejected(example: dict[str, Any], seq_len: int) -> str:
    if sum(example["lengths"]) > seq_len:
        return "too_long"
    return "" if all(example["any_learned"]) else "nothing_to_learn"


def _encoded(tokenizer: Tokenizer, texts: list[Segments], eos_id: int) -> dict[str, Any]:
    """Returns lengths, tokens and learned of `examples.SCHEMA`; end-of-text is learned where the text before it is."""
    found: dict[str, Any] = {"lengths": [], "tokens": [], "learned": [], "any_learned": []}
    for segments in texts:
        encoded = tokenizer.encode_batch_fast([text for text, _ in segments], add_special_tokens=False)
        tokens = [token for piece in encoded for token in piece.ids]
        learned = [flag for piece, (_, flag) in zip(encoded, segments, strict=True) for _ in piece.ids]
        found["any_learned"].append(any(learned))
        found["lengths"].append(len(tokens) + 1)
        found["tokens"] += [*tokens, eos_id]
        found["learned"] += [*learned, bool(learned and learned[-1])]
    return found


def _eos_id(tokenizer: ArtifactFolder, loaded: Tokenizer) -> int:
    """Returns the end-of-text token that the tokenizer's settings name."""
    found: int = loaded.get_vocab()[json.loads(tokenizer.read("tokenizer_config.json"))["eos_token"]]
    return found


def _opened(path: str) -> BinaryIO:
    return io.BytesIO(read_outside(path)) if "://" in path else Path(path).open("rb")
