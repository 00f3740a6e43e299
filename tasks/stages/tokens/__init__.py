"""Stages of the tokens: the tokenizer, the token shards, and the packing plan.

documents -> bpe -> tokenizer.json
documents + tokenizer -> encode -> shards/<source>-<split>-<part>-<piece>.arrow   (tokens, written once)
shards -> pack -> plan/<source>.parquet                                           (document slices of each sequence)
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tasks.core.config import Config, duplicates, nearest, require_absolute
from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns
from tasks.formats.tokens.components import Alpha, columns_of
from tasks.formats.tokens.labels import BASE_COLUMNS, DOCUMENT_COLUMNS, METADATA, SOURCE, SourceName
from tasks.formats.tokens.mixture import check_weights
from tasks.formats.tokens.pieces import Digits, Split

UNIGRAM_MIN = 512
"""Least number of entries of a unigram vocabulary: 256 bytes, the ASCII characters, and room for pieces."""


class TokenizerConfig(Config):
    """Settings of the tokenizer: training, or import of an existing one."""

    vocab_size: int = Field(default=4096, ge=257)
    """Entries of the vocabulary: 256 bytes, the end-of-text token, and merges. 128,000 is common for large models."""
    algorithm: Literal["bpe", "unigram"] = "bpe"
    """`bpe`: byte-level byte pair encoding. `unigram`: the most probable tokens of a text (Kudo 2018), trained by
    SentencePiece (`pip install "sluice[unigram]"`), with bytes for characters outside the vocabulary."""
    split: Split = "llama3"
    """Pieces into which a text is split first, and which no token crosses: the shapes of `gpt2`, of `llama3` with
    combining marks as letters, or of `o200k`, which also splits `camelCase` (see `tasks.formats.tokens.pieces`)."""
    digits: Digits = "single"
    """Pieces of a number: `single` digits, or groups of three from the `left` (123 456 7) or the `right` (1 234 567).
    `gpt2` has runs of digits, whatever is set here."""
    sample_bytes: int = Field(default=32_000_000, ge=1)
    """UTF-8 bytes of training text, drawn from the kept documents by a hash of their id."""
    weights: dict[str, float] = {}
    """Share of the sample by source, summing to 1, so that a small but important source influences the merges. Empty:
    each source by its size. With several columns in `by`, a name is that of a component or of a group of them, as in
    `[train] mixture`."""
    by: str = Field(default=SOURCE, exclude_if=lambda by: by == SOURCE)
    """Columns of the documents whose values `weights` and `alpha` name: `source`, `language`, `source+language` and so
    on, as in `[pack] by`."""
    alpha: Alpha = Field(default={}, exclude_if=lambda alpha: not alpha)
    """By column of `by`, the exponent of the sizes (UTF-8 bytes) of its values, as in `[train] alpha`: with
    `by = "language"`, `{ language = 0.3 }` raises small languages in the sample."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum number of occurrences in the sample for a pair to be merged (`bpe`)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sample."""
    file: str = ""
    """`tokenizer.json` of an existing byte-level tokenizer: an absolute path, or a URL of an object store. It is used
    unchanged, and its bytes are part of the fingerprint; its fertility is measured on the sample. A chat template that
    `import-model` has published beside it is used, too. Empty: a tokenizer is trained."""
    end_of_text: str = Field(default="<|endoftext|>", min_length=1)
    """The special token that ends a document; for an imported tokenizer, one of its special tokens."""

    @field_validator("file")
    @classmethod
    def _absolute(cls, path: str) -> str:
        return require_absolute(path) if path else path

    @field_validator("weights")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @field_validator("by")
    @classmethod
    def _of_documents(cls, by: str) -> str:
        columns = columns_of(by)
        for column in columns:
            of_metadata = column.startswith(METADATA) and column != METADATA
            if column not in DOCUMENT_COLUMNS and not of_metadata:
                remedy = nearest(column, (*DOCUMENT_COLUMNS, f"{METADATA}<field>"))
                raise ValueError(f'the documents have no column "{column}" of names: {remedy}')
        if twice := duplicates(columns):
            raise ValueError(f'the column "{twice[0]}" is named twice: leave one out')
        return by

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.split == "gpt2" and self.digits != "single":
            raise ValueError(f'digits = "{self.digits}": split = "gpt2" has runs of digits; choose another split')
        if self.algorithm == "unigram" and self.vocab_size < UNIGRAM_MIN:
            raise ValueError(f"vocab_size: a unigram vocabulary has at least {UNIGRAM_MIN} entries")
        return self


class TokenFiles(Config):
    """Files with tokenized documents, encoded with the recipe's tokenizer; they form one source."""

    name: SourceName
    """Name of the source."""
    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob (`**` for any depth), on this machine or on an object store (s3://bucket/folder/*.parquet): `.idx`
    of Megatron-LM with its `.bin` (local only), `.parquet`, or the `.arrow` files of a saved dataset."""
    column: str = "input_ids"
    """The column with the tokens in tables."""


class EncodeConfig(Config):
    """Settings of the encoding of documents into token shards."""

    shard_tokens: int = Field(default=64_000_000, ge=1)
    """Number of tokens after which a shard file is closed; its last document may exceed it. 64 M tokens are 128 MB at 2
    bytes each."""
    heldout_share: float = Field(default=0.02, ge=0, lt=0.5)
    """Share of each source's documents that is held out to measure bits per byte. The split is by a hash of the id, so
    that a document is in the same split in every later version of the corpus."""
    heldout_min: int = Field(default=4, ge=0)
    """Minimum number of held-out documents per source (at most a tenth of them): those with the lowest hashes."""
    columns: tuple[str, ...] = ("tier", "language")
    """Columns of the documents that are stored with the tokens, so that `[pack] by` can group sequences by one of them:
    `tier`, `language`, `host`, `fetched_at` (as a month, "2026-11") or `metadata.<field>`. Each value is a name (see
    `tasks.formats.tokens.labels`)."""

    accumulate: bool = Field(default=False, exclude_if=lambda accumulates: not accumulates)
    """Adds the new documents to the shards of the version before, whose tokenizer and tokens are taken over unchanged.
    For a corpus that grows from version to version, with `[dedup_index]`. False: the shards have the documents of their
    own version only."""
    token_files: tuple[TokenFiles, ...] = ()
    """Additional sources of tokenized documents, which bypass filters and deduplication."""

    @field_validator("columns")
    @classmethod
    def _free(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        for name in columns:
            if name in BASE_COLUMNS:
                raise ValueError(f'"{name}" is a column of every shard: leave it out')
        if twice := duplicates(columns):
            raise ValueError(f'"{twice[0]}" is named twice: leave one out')
        return columns


class PackConfig(Config):
    """Settings of the packing of token shards into sequences."""

    seq_len: int = Field(default=256, ge=2)
    """Tokens per sequence."""
    method: Literal["concat", "best_fit"] = "concat"
    """`concat` concatenates documents and cuts every `seq_len` tokens: no padding, but documents are split. `best_fit`
    splits only documents that are longer than a sequence, and pads the sequences."""
    by: str = SOURCE
    """Column whose values are the sources of the plan and of mixtures: `source`, or one of `[encode] columns`; or
    several of them, joined by "+": `source+language` has the values `web+ja` and so on."""
    leave_out_repeats: bool = Field(default=False, exclude_if=lambda leaves: not leaves)
    """Excludes the tokens of long repeats (`[repeats]`), except the first occurrence of each. The remaining pieces of a
    document are packed like separate documents."""


_EARLIER = {
    "earlier": PreviousInput("shards", completed_by="plan", accumulates=True, when="encode.accumulate"),
}
"""The shards of the version before."""
_KEPT = Input("documents", files=("kept/",))
"""Rejected documents do not affect the tokens."""

STAGES = (
    StageSpec(
        "tokenizer",
        dag="tokens",
        output="tokenizer",
        config=TokenizerConfig,
        module="bpe",
        inputs={"documents": _KEPT},
        previous=_EARLIER,
    ),
    StageSpec(
        "encode",
        dag="tokens",
        output="shards",
        config=EncodeConfig,
        module="encode",
        inputs={"documents": _KEPT, "tokenizer": Input("tokenizer")},
        previous=_EARLIER,
        decided_by="tokenizer",
    ),
    StageSpec(
        "pack",
        dag="tokens",
        output="plan",
        config=PackConfig,
        module="pack",
        asset="tokens",
        inputs={"shards": Input("shards"), "repeats": Input("repeats", optional=True)},
        takedowns=Takedowns(),
    ),
)
