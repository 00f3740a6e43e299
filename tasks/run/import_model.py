"""Import of a Hugging Face model folder as the artifacts `tokenizer` and `checkpoint` of a recipe.

Reads a folder (`tasks.trainer.interchange.model_source`) with a model (`model_folder` there), `tokenizer.json` and
`tokenizer_config.json`. The tokenizer artifact has `tokenizer.json`, byte for byte, the end-of-text token in
`tokenizer_config.json`, and the chat template of the folder, if any, in `chat_template.jinja`. The checkpoint has the
files of a training without steps: `checkpoints/step-00000000/model.safetensors` (fp32), `model.json`, `run.json`;
`import.json` {name, license, revision, architecture, sha256 by file, dtypes of the tensors that were not fp32}, which
marks it as imported; and in `source/` the files of the folder that state its tokens, which an export has again. Records
list every file of the folder that was read, with its sha256.

A model that a recipe names by its address becomes artifacts of the recipe `imported` (`imported_model`).

The export (`tasks.run.export`) is the inverse.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.artifact import EXTERNAL, Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config, canonical_json, sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import DriftError, InputError
from tasks.core.stage import Output, Part, Report
from tasks.core.store import Store, probe
from tasks.formats.tokens.exposure import IMPORT, SOURCE
from tasks.formats.tokens.shard import TokenFormat
from tasks.stages.tokens.encoder import ReferenceEncoder
from tasks.stages.tokens.token_import import check_ids, check_lossless, special_tokens
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.interchange.chat_template import FILE as CHAT_TEMPLATE
from tasks.trainer.interchange.huggingface import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from tasks.trainer.interchange.model_folder import (
    SOURCE_FILES,
    FolderModel,
    read_chat_template,
    read_ends,
    read_json,
    read_model,
    read_origin,
    read_tensors,
    token_content,
)
from tasks.trainer.interchange.model_source import ModelFiles, identify, model_files
from tasks.trainer.interchange.weights import StoredTensor, write_fp32
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.model_file import FILE, describe

log = logging.getLogger("sluice.import")

COMMAND, VERSION = "import-model", 3
"""Stage and version in the records, and in the fingerprints."""

IMPORTED = "imported"
"""Recipe under whose name models are published that other recipes name by their address."""

Write = Callable[[Output], None]
"""Writes the parts of an artifact that are not committed yet."""


@dataclass(frozen=True)
class FolderTokenizer:
    """Bytes of `tokenizer.json`, its end-of-text token, the format of its tokens, and the chat template ("": none).

    `begin_of_text` is the token that the chat template calls `bos_token`, "" if the folder names none. `stop` are the
    tokens that end a generated text, with their ids.
    """

    data: bytes
    end_of_text: str
    tokens: TokenFormat
    chat_template: str
    begin_of_text: str
    stop: Mapping[str, int]


@dataclass(frozen=True)
class ImportedModel:
    """The artifacts of an imported model, and the shape of `[train.model]`."""

    tokenizer: Artifact
    checkpoint: Artifact
    shape: ModelConfig

    def text(self) -> str:
        """Returns the artifacts, and the settings of a training that begins from the weights, as text."""
        settings = ", ".join(f"{name} = {_toml(value)}" for name, value in self.shape.model_dump().items())
        notes = (f"{artifact.address}: {artifact.record.note}" for artifact in (self.tokenizer, self.checkpoint))
        return "\n".join([*notes, f"model = {{ {settings} }}"])


def import_model(store: Store, recipe: str, version: str, source: str) -> ImportedModel:
    """Publishes the model of a source; artifacts that exist with the same content stay as they are.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the artifacts to make.
        source: path or URL of a folder, or hf://owner/name[@revision] (`model_source`).

    Raises:
        InputError: the folder is incomplete or damaged, or has a model or tokenizer that Sluice does not support.
        DriftError: the version has another tokenizer or checkpoint.
        StoreError, TransientError: see `model_files`.
    """
    probe(store.root)
    with model_files(source) as files:
        return _import(store, recipe, version, files)


def imported_model(store: Store, address: str) -> Artifact:
    """Returns the checkpoint of a model outside the store, which is imported unless its content has been before.

    Its version has the last name of the address and a hash of what the source is now: the commit of a model of the hub,
    the bytes of a folder's files, the state of those of a URL. So a source that has changed is another checkpoint, and
    artifacts made from the earlier one are refused as out of date. Processes that import the same model at once end
    with one checkpoint.

    Raises:
        SluiceError: see `import_model`.
    """
    identity = identify(address)
    version = f"{identity.label}-{sha256_of_json([VERSION, identity.content])[:12]}"
    if found := Artifact.find(store, ArtifactId(f"{IMPORTED}/checkpoint", version)):
        return found
    log.info("%s is imported as %s/checkpoint@%s", identity.address, IMPORTED, version)
    return import_model(store, IMPORTED, version, identity.address).checkpoint


def _import(store: Store, recipe: str, version: str, source: ModelFiles) -> ImportedModel:
    path = source.folder
    model = read_model(path)
    tensors = read_tensors(path, model)
    tokenizer = read_tokenizer(path, model)
    refs = {name: _ref(source, name, file) for name, file in source.read().items()}
    vocabulary = _publish(
        store,
        ArtifactId(f"{recipe}/tokenizer", version),
        [refs[name] for name in sorted({TOKENIZER, *SOURCE_FILES} - {CONFIG}) if name in refs],
        lambda output: _write_tokenizer(output, tokenizer),
        f"{tokenizer.tokens.vocab_size:,} entries, end-of-text {tokenizer.end_of_text}, imported from {source.address}",
    )
    files = _descriptions(source, model, tokenizer, tensors, {name: ref.content for name, ref in refs.items()})
    parameters, license_ = files[FILE]["parameters"]["total"], files[IMPORT]["license"] or "not stated"
    checkpoint = _publish(
        store,
        ArtifactId(f"{recipe}/checkpoint", version),
        [vocabulary.ref("tokenizer"), *refs.values()],
        lambda output: _write_checkpoint(output, tensors, files, path),
        f"{parameters:,} parameters, license: {license_}, imported from {source.address}",
    )
    return ImportedModel(vocabulary, checkpoint, model.of_tokens(tokenizer.tokens.vocab_size))


def _descriptions(
    source: ModelFiles,
    model: FolderModel,
    tokenizer: FolderTokenizer,
    tensors: Mapping[str, StoredTensor],
    digests: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the content of the JSON files of the checkpoint, by name; `digests` are the sha256 of the folder's."""
    shape = model.of_tokens(tokenizer.tokens.vocab_size)
    described = describe(shape, tokenizer.tokens, model.context, tokenizer.stop.values())
    dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != "F32"}
    origin = asdict(read_origin(source.folder, model.content))
    if source.name:
        origin |= {"name": source.name, "revision": source.revision}
    architecture = model.content["architectures"][0]
    return {
        FILE: described,
        "run.json": _run_without_steps(described),
        IMPORT: {**origin, "architecture": architecture, "dtypes": dtypes, "sha256": dict(digests)},
    }


def read_tokenizer(folder: Path, model: FolderModel) -> FolderTokenizer:
    """Returns the tokenizer of a folder after checking that it is lossless and that the model has a row for each token.

    Raises:
        InputError: it cannot be read, changes texts, has more tokens than the model, or no end-of-text token.
    """
    path = folder / TOKENIZER
    try:
        data = path.read_bytes()
        tokenizer = ReferenceEncoder(data.decode()).tokenizer
    except OSError as error:
        remedy = "save the tokenizer with AutoTokenizer, which writes it"
        raise InputError(f"{path} cannot be read ({error.strerror})", remedy) from None
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InputError(f"{path} is not a Hugging Face tokenizer ({str(error)[:200]})", "download it again") from None
    settings = json.loads(data)
    for name in ("truncation", "padding"):
        if settings.get(name):
            raise InputError(f"{path}: {name} = {json.dumps(settings[name])} would change texts", f"set {name} to null")
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    last = max(vocabulary.values(), default=-1)
    if last >= model.vocab_size:
        raise InputError(
            f"{path} has ids up to {last:,}, and {CONFIG} a vocab_size of {model.vocab_size:,}",
            "name a folder whose tokenizer and model belong together",
        )
    check_ids(tokenizer, str(path))
    check_lossless(tokenizer, str(path))
    end_of_text = _end_of_text(folder, model, vocabulary, special_tokens(tokenizer))
    tokens = TokenFormat(last + 1, vocabulary[end_of_text], sha256_of_file(path))
    stated = read_json(folder / TOKENIZER_CONFIG)
    begin_of_text, stop = token_content(stated.get("bos_token")), _stop(folder, tokenizer)
    return FolderTokenizer(data, end_of_text, tokens, read_chat_template(folder), begin_of_text, stop)


def _stop(folder: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the tokens that end a generated text; a row of the model that is no token is never generated."""
    return {name: number for number in read_ends(folder) if (name := tokenizer.id_to_token(number))}


def _end_of_text(folder: Path, model: FolderModel, vocabulary: Mapping[str, int], special: Sequence[str]) -> str:
    """Returns the end-of-text token that the settings of tokenizer and model name."""
    path = folder / TOKENIZER_CONFIG
    token = token_content(read_json(path).get("eos_token"))
    if not token:
        names = ", ".join(special[:10]) or "none"
        raise InputError(f"{path} has no eos_token", f"set it to the token that ends a text; special tokens: {names}")
    if token not in special:
        # A text could contain any other entry of the vocabulary.
        raise InputError(
            f"{path}: eos_token = {json.dumps(token)} is not a special token of {TOKENIZER}",
            f"set eos_token to one of {', '.join(special[:10]) or 'its special tokens, of which it has none'}",
        )
    ids, id_ = model.content.get("eos_token_id"), vocabulary[token]
    if ids is not None and id_ not in (ids if isinstance(ids, list) else [ids]):
        raise InputError(
            f"{path}: eos_token = {json.dumps(token)} has the id {id_}, and {CONFIG} eos_token_id = {json.dumps(ids)}",
            "set both to the token that ends a text",
        )
    begin = model.content.get("bos_token_id")
    if begin is not None and begin != id_:
        log.warning(
            "the model was trained with the token %s before a text: here, %s is before every text", begin, token
        )
    return token


def _ref(source: ModelFiles, name: str, file: Path) -> InputRef:
    digest = source.sha256.get(name) or sha256_of_file(file)
    address = f"{EXTERNAL}{source.address}/{name}"
    return InputRef(role=f"file:{name}", address=address, fingerprint=digest, content=digest)


def _publish(store: Store, address: ArtifactId, refs: Sequence[InputRef], write: Write, note: str) -> Artifact:
    """Returns the artifact at `address`, which `write` fills unless it exists with the same inputs."""
    identity = fingerprint(COMMAND, VERSION, "", Config(), refs)
    existing = Artifact.find(store, address)
    if existing is None:
        output = Output(store, address, identity)
        write(output)
        return commit(output, COMMAND, VERSION, Config(), refs, Report(note=note))
    if existing.record.fingerprint != identity:
        cause = f"{address} exists, and is not the model of this source as this version of Sluice imports it"
        raise DriftError(cause, "give the import another --version")
    log.info("[%s] unchanged: imported from the same files at %s", address, existing.record.finished)
    return existing


def _write_tokenizer(output: Output, tokenizer: FolderTokenizer) -> None:
    if TOKENIZER in output.committed:
        return
    named: dict[str, Any] = {"eos_token": tokenizer.end_of_text}
    if tokenizer.chat_template and tokenizer.begin_of_text:
        named["bos_token"] = tokenizer.begin_of_text
    if tokenizer.chat_template and set(tokenizer.stop) - {tokenizer.end_of_text}:
        named["stop_tokens"] = list(tokenizer.stop)
    settings = json.dumps(named, indent=2, ensure_ascii=False)
    with output.part(TOKENIZER, conserved=False) as part:
        _write(part, TOKENIZER, tokenizer.data)
        _write(part, TOKENIZER_CONFIG, f"{settings}\n".encode())
        if tokenizer.chat_template:
            _write(part, CHAT_TEMPLATE, tokenizer.chat_template.encode())
        part.metric("vocab_size", tokenizer.tokens.vocab_size)


def _write_checkpoint(
    output: Output, tensors: Mapping[str, StoredTensor], files: Mapping[str, Any], folder: Path
) -> None:
    name = name_of(0)
    if name not in output.committed:
        with output.part(name, conserved=False) as part, part.file(f"checkpoints/{name}/{MODEL}") as file:
            write_fp32(tensors, file)
    if "model" not in output.committed:
        with output.part("model", conserved=False) as part:
            for path, content in files.items():
                _write(part, path, f"{canonical_json(content)}\n".encode())
            for name in (name for name in SOURCE_FILES if (folder / name).is_file()):
                _write(part, f"{SOURCE}{name}", (folder / name).read_bytes())


def _write(part: Part, path: str, content: bytes) -> None:
    part.write(path, content)


def _run_without_steps(described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `run.json`: that of a training whose only checkpoint is the one before its first step."""
    run = {"weights": {}, "sequences": {}, "batch_size": 0, "seed": 0, "steps": 0, "checkpoint_steps": [0]}
    return run | {name: described[name] for name in ("seq_len", "vocab_size", "tokenizer_sha256")}


def _toml(value: Any) -> str:
    """Returns a setting of a model as TOML, for an inline table."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(one)}' for name, one in value.items())} }}"
    return json.dumps(value)
