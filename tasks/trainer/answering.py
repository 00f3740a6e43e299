"""Questions to a trained model that a person waits for: a continuation of a text, or the loss of each part of a step.

A server asks `continue_text` and `step_losses`. A child process (this module as a program) computes the answer, because
torch and the weights would occupy hundreds of megabytes of a server for good, and because a process can be limited: in
memory, CPU time and time. The child gets the question as JSON on standard input and writes the answer as JSON. One
question at a time is answered on a machine.
"""

import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core import child_process
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.open_files import raise_limit
from tasks.core.store import Store
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of

MOST_WEIGHTS = 512 * 2**20
"""Maximum size of the weights of a model that answers, in bytes: 134 M parameters in fp32."""
MOST_TOKENS = 256
"""Maximum number of tokens of a continuation."""
MOST_SEQUENCES = 32
"""Number of sequences of a step whose losses are computed."""
TIMEOUT_S, CPU_S = 120.0, 60.0
"""Time and CPU time after which a child is killed."""
_WORK_BYTES = 2**30
"""Memory of a child beside the weights, which are in memory twice while they are read."""
_LOGITS = 512
"""Positions whose logits exist at a time."""


def continue_text(model: Artifact, prompt: str, max_tokens: int, temperature: float, seed: int) -> str:
    """Returns the text with which a model continues a prompt; the same arguments give the same text.

    Args:
        model: artifact of a training or a fine-tuning.
        prompt: a text; of a long one the model reads as many of the last tokens as its context has.
        max_tokens: maximum number of new tokens, at most MOST_TOKENS; end-of-text stops earlier.
        temperature: 0 selects the most likely token; 1 samples from the unscaled distribution.
        seed: of the samples.

    Raises:
        InputError: the model is too large, has no whole weights or no tokenizer; the answer takes too long; or another
            question is being answered.
    """
    from tasks.formats.tokens.exposure import tokenizer_of
    from tasks.trainer.model.model_file import weights_to_use

    size = _checked_size(model)
    _, weights = weights_to_use(model, "the model")
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {model.address} is gone", "restore it")
    question = {
        **_located(model),
        "weights": weights.file,
        "tokenizer": str(tokenizer.address),
        "prompt": prompt,
        "sampling": {"max_tokens": min(max_tokens, MOST_TOKENS), "temperature": temperature, "seed": seed},
    }
    return str(_ask("continuation", question, size))


def step_losses(
    checkpoint: Artifact, shards: Artifact, plan: Artifact, step: int, milestone: int
) -> list[list[dict[str, Any]]]:
    """Returns the loss of each part of a document in the batch of a step, with the weights of a milestone.

    Args:
        checkpoint: artifact of a training.
        shards: its token shards.
        plan: its plan.
        step: 0-based.
        milestone: one of the `checkpoint_steps` of the run: the number of steps that the weights were trained on.

    Returns:
        {"tokens": number of predicted tokens, "loss": mean nats per token, None without any} per part, in the order of
        the plan, for each of the first MOST_SEQUENCES sequences in the order of the batch.

    Raises:
        InputError: as `continue_text`; or the plan was not packed from the shards.
    """
    size = _checked_size(checkpoint)
    question = {
        **_located(checkpoint),
        "weights": checkpoint.local(f"checkpoints/{name_of(milestone)}/{MODEL}"),
        "shards": str(shards.address),
        "plan": str(plan.address),
        "step": step,
    }
    found: list[list[dict[str, Any]]] = _ask("losses", question, size)
    return found


def _located(model: Artifact) -> dict[str, Any]:
    return {"store": model.store.root, "model": str(model.address)}


def weights_bytes(model: Artifact) -> int:
    """Returns the size of the largest file with weights of a model, in bytes; 0 without one. Fetches no file."""
    return max((entry.bytes for entry in model.entries() if entry.path.endswith(f"/{MODEL}")), default=0)


def _checked_size(model: Artifact) -> int:
    size = weights_bytes(model)
    if size > MOST_WEIGHTS:
        raise InputError(
            f"the weights of {model.address} have {size / 1e6:,.0f} MB; a server reads {MOST_WEIGHTS / 1e6:,.0f} MB",
            "serve the registered model on a machine with room for it",
        )
    return size


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Holds the lock of this machine; raises InputError if another process or thread holds it."""
    path = Path(tempfile.gettempdir()) / f"sluice-answering-{os.getuid()}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("a model of this server is answering another question", "try again in a minute") from None
        yield


def _ask(kind: str, question: Mapping[str, Any], weights_bytes: int) -> Any:
    """Returns the answer of a child; raises InputError with the child's reason."""
    request = {"kind": kind, "memory": 3 * weights_bytes + _WORK_BYTES, **question}
    with _alone():
        try:
            ran = subprocess.run(
                child_process.command(__name__),
                input=json.dumps(request),
                env=child_process.environment({"OMP_NUM_THREADS": "1"}),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"the answer took longer than {TIMEOUT_S:.0f} s", "ask for less") from None
    try:
        answer = json.loads(ran.stdout)
    except ValueError:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the answer failed (exit status {ran.returncode}: {last})", "ask for less") from None
    if "error" in answer:
        raise InputError(*answer["error"])
    return answer["result"]


def _continuation(question: Mapping[str, Any]) -> str:
    from tokenizers import Tokenizer

    from tasks.trainer.inference import Sampling, check_length, continuation
    from tasks.trainer.model import model_file

    model, tokenizer = _open(question, "model"), _open(question, "tokenizer")
    loaded, described = model_file.load_model(Path(model.local(model_file.FILE)), Path(question["weights"]))
    words = Tokenizer.from_str(tokenizer.read("tokenizer.json").decode())
    prompt = words.encode(question["prompt"], add_special_tokens=False).ids
    eos_id, context, stop = described["eos_id"], described["seq_len"], model_file.stop_ids(described)
    check_length(1 + len(prompt), context)
    tokens = continuation(loaded, prompt, eos_id, context, Sampling.model_validate(question["sampling"]), stop)
    return str(words.decode(tokens))


def _losses(question: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    from tasks.trainer.model import model_file

    model = _open(question, "model")
    loaded, _ = model_file.load_model(Path(model.local(model_file.FILE)), Path(question["weights"]))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(_batches(question, model, Path(folder))) as batches,
    ):
        drawn = batches.order.batch(question["step"])[:MOST_SEQUENCES]
        counts = [len(batches.plan.slices(source, number)) for source, number, _ in drawn]
        batch = batches.batch(question["step"])
    found = []
    for row, count in enumerate(counts):
        losses = _row_losses(loaded, batch.tokens[row], batch.labels[row], batch.documents[row])
        found.append([_mean(losses, number) for number in range(count)])
    return found


def _batches(question: Mapping[str, Any], model: Artifact, folder: Path) -> Any:
    """Returns the batches of the run of a checkpoint."""
    from tasks.trainer.config import TrainConfig, TrainSpec
    from tasks.trainer.data.batches import Batches
    from tasks.trainer.spec import artifact_spec

    shards, plan = _open(question, "shards"), _open(question, "plan")
    run = json.loads(model.read("run.json"))
    spec = TrainSpec(
        run=TrainConfig.model_validate(model.record.config),
        weights=run["weights"],
        anneal=run.get("anneal"),
        shards=artifact_spec(shards),
        plan=artifact_spec(plan),
        out=str(folder),
    )
    return Batches(spec)


def _row_losses(model: Any, tokens: Any, labels: Any, documents: Any) -> list[tuple[int, float]]:
    """Returns (number of the slice, nats) of each predicted token of a sequence; arguments are int64 [positions]."""
    import torch
    import torch.nn.functional as F

    from tasks.trainer.model.loss import IGNORED

    with torch.no_grad():
        hidden = model.hidden(tokens[None], documents[None])[0]
        nats: list[float] = []
        for at in range(0, len(hidden), _LOGITS):
            logits = model.logits(hidden[at : at + _LOGITS]).float()
            losses = F.cross_entropy(logits, labels[at : at + _LOGITS], ignore_index=IGNORED, reduction="none")
            nats += losses.tolist()
    predicted = (labels != IGNORED).tolist()
    return [(number, loss) for number, loss, counts in zip(documents.tolist(), nats, predicted, strict=True) if counts]


def _mean(losses: Sequence[tuple[int, float]], number: int) -> dict[str, Any]:
    own = [loss for slice_number, loss in losses if slice_number == number]
    return {"tokens": len(own), "loss": math.fsum(own) / len(own) if own else None}


def _open(question: Mapping[str, Any], role: str) -> Artifact:
    return Artifact.open_at(Store(question["store"]), ArtifactId.parse(question[role]))


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"continuation": _continuation, "losses": _losses}


def main() -> None:
    """Answers the question on standard input; a failure that a person can act on is an answer, too."""
    os.nice(5)
    raise_limit()
    question = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # the output of libraries must not mix with the answer
        import torch

        import tasks.trainer.data.batches
        import tasks.trainer.inference  # noqa: F401  everything is imported before the limit

        torch.set_num_threads(1)
        child_process.limit_memory(question["memory"])
        child_process.limit_cpu(CPU_S)  # also where the server has died meanwhile
        try:
            answer: dict[str, Any] = {"result": _KINDS[question["kind"]](question)}
        except SluiceError as error:
            answer = {"error": [error.cause, error.remedy]}
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError where memory is short
            answer = {"error": [f"the model could not answer ({str(error).splitlines()[0]})", "ask for less"]}
        out.write(json.dumps(answer))


if __name__ == "__main__":
    main()
