"""Which layouts a run can be trained in."""

from tasks.core.errors import RecipeError
from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.place import Layout


def check_fit(layout: Layout, run: TrainConfig, vocab_size: int, seq_len: int, world: int) -> None:
    """Raises RecipeError with every reason for which `run` cannot be trained in this layout.

    Args:
        layout: what the place asks for.
        run: settings of the run.
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a training sequence.
        world: ranks that there are.
    """
    reasons = [
        *([f"its ranks are {layout.ranks}, and there are {world}"] if layout.ranks != world else []),
        *_batch_reasons(layout, run),
        *_tensor_reasons(layout, run.model, vocab_size, seq_len),
        *_pipeline_reasons(layout, run),
    ]
    if reasons:
        raise RecipeError(
            f"this run cannot be trained in the layout of the place: {'; '.join(reasons)}",
            "change [place.train.layout], or the settings that are named",
        )


def _batch_reasons(layout: Layout, run: TrainConfig) -> list[str]:
    microbatches = run.batch_size // run.microbatch
    if microbatches % layout.data_ranks:
        return [
            f"replicate x shard = {layout.data_ranks} ranks cannot share {microbatches} microbatches "
            "(batch_size / microbatch) equally"
        ]
    return []


def _tensor_reasons(layout: Layout, model: ModelConfig, vocab_size: int, seq_len: int) -> list[str]:
    degree, reasons = layout.tensor, []
    sizes = {"kv_heads": model.kv_heads, "heads": model.heads, "ffn_dim": model.ffn_dim, "vocabulary": vocab_size}
    for name, size in sizes.items():
        if size % degree:
            reasons.append(f"tensor = {degree} does not divide {name} = {size}")
    if seq_len % (2 * layout.context if layout.context > 1 else 1):
        reasons.append(f"2 x context = {2 * layout.context} does not divide seq_len = {seq_len}")
    elif seq_len // layout.context % degree:
        reasons.append(f"tensor = {degree} does not divide the {seq_len // layout.context} positions of a rank")
    return reasons


def _pipeline_reasons(layout: Layout, run: TrainConfig) -> list[str]:
    if layout.pipeline == 1:
        return []
    chunks, reasons = layout.pipeline * layout.chunks_per_rank, []
    if run.model.layers < chunks:
        reasons.append(f"{run.model.layers} layers cannot be {chunks} chunks (pipeline x chunks)")
    if run.model.tie_embeddings:
        reasons.append("with pipeline > 1 the first rank has the embedding and the last one the head: tie_embeddings")
    mine = run.batch_size // run.microbatch // layout.data_ranks
    if mine < layout.pipeline or (layout.schedule == "interleaved" and mine % layout.pipeline):
        reasons.append(
            f"{mine} microbatches per data-parallel rank for pipeline = {layout.pipeline}: "
            + ("a multiple is needed" if layout.schedule == "interleaved" else "as many are needed")
        )
    return reasons
