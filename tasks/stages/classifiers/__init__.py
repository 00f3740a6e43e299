"""Stage train_classifiers: labeled, reference and crawled text -> classifiers of quality, toxicity and topic."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tasks.core.config import Config, duplicates, nearest, require_absolute
from tasks.core.stage_spec import Input, StageSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class Texts(Config):
    """Files of training texts: JSON lines, plain or compressed (.gz, .zst, .bz2)."""

    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob (`**` for any depth), on the machine where the stage runs or as a URL on an object store
    (s3://bucket/reference/*.jsonl.zst)."""
    text_field: str = "text"
    """The field with the text."""
    label: str = ""
    """Label of all texts; "": the label of each row is read from `label_field`."""
    label_field: str = "label"
    """The field with the label, if `label` is empty."""
    relabel: dict[str, str] = {}
    """Labels by the label in the file, such as `{offensive = "toxic", hate_speech = "toxic"}`; rows with other labels
    are skipped. Empty: labels are unchanged."""
    group_field: str = ""
    """The field with the group of a row (site, book, author). The split never divides a group."""

    @model_validator(mode="after")
    def _one_way_to_labels(self) -> "Texts":
        if self.label and self.relabel:
            raise ValueError("label is for all texts, relabel for the labels of rows: set only one of them")
        return self


class CrawlTexts(Config):
    """A sample of the crawl's documents under one label: the class that contrasts with the reference text."""

    label: str = "crawl"
    """Label of the sample."""
    documents: int = Field(default=100_000, ge=1)
    """Size of the sample, which is selected by a hash of the id. DCLM uses 100,000 of each class."""
    sources: tuple[str, ...] = ("web",)
    """Sources of the documents in the sample."""
    split_by: Literal["host", "document"] = "host"
    """Unit of the split into training and held-out texts. Pages of a host are similar, so only a split by host is
    unbiased; a crawl of few hosts has to be split by document."""


class FastTextSettings(Config):
    """Settings of fastText. The defaults are those of fastText, but with word pairs, as in DCLM (arXiv 2406.11794)."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the texts. A few thousand short texts need 25."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Initial learning rate; it decays to 0."""
    dimensions: int = Field(default=100, ge=1)
    """Length of the vectors. 16 to 32 suffice for little data."""
    word_ngrams: int = Field(default=2, ge=1, le=5)
    """Maximum number of words of an n-gram feature."""
    char_ngrams: tuple[int, int] = (0, 0)
    """Minimum and maximum number of letters of an n-gram feature; (0, 0) for none. (3, 6) helps if spelling varies."""
    buckets: int = Field(default=200_000, ge=1)
    """Hash buckets of n-grams. With `dimensions` they determine the file size: 200,000 x 100 x 4 bytes are 80 MB."""
    min_count: int = Field(default=1, ge=1)
    """Minimum number of occurrences of a word in the vocabulary."""
    quantised: bool = False
    """Compress the model about tenfold by product quantization; held-out scores are those of the compressed model."""

    @model_validator(mode="after")
    def _a_range(self) -> "FastTextSettings":
        shortest, longest = self.char_ngrams
        if not (shortest == longest == 0 or 1 <= shortest <= longest <= 10):
            raise ValueError("char_ngrams must be (0, 0), or minimum and maximum from 1 to 10")
        return self


class ClassifierSettings(Config):
    """One classifier: its training texts, its method and its evaluation."""

    name: Name
    """Name in annotators and reports, and folder in the artifact."""
    method: Literal["fasttext", "signals"] = "fasttext"
    """`fasttext` uses words; `signals` is a logistic regression over a dozen surface features, for a few hundred texts
    with two labels (see `tasks.filters.learned.signals`)."""
    texts: tuple[Texts, ...] = Field(min_length=1)
    """Labeled texts and reference texts."""
    crawl: CrawlTexts | None = None
    """An additional sample of the crawl; None for none."""
    positive: str = ""
    """The label whose probability is the score; "" for topics, which have no positive label."""
    chars: int = Field(default=2000, ge=1)
    """Number of characters, from the beginning of a text, that are read in training and inference."""
    max_per_label: int | None = Field(default=None, ge=1)
    """Maximum number of texts per label; those with the lowest hashes are used. None: no limit."""
    heldout_share: float = Field(default=0.1, gt=0, lt=0.9)
    """Share of the groups (of the texts, if they have no group) that is held out for evaluation."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sample, the split and the training."""
    fasttext: FastTextSettings = FastTextSettings()
    """Settings of the method `fasttext`."""
    ridge: float = Field(default=20.0, gt=0)
    """Strength of the L2 penalty, for the method `signals`."""
    purpose: str = ""
    """Purpose of the classifier: one sentence for the model card."""

    @model_validator(mode="after")
    def _fits_the_method(self) -> "ClassifierSettings":
        if self.method == "signals" and not self.positive:
            raise ValueError("the method signals needs a positive label: name it")
        if self.positive and self.labels is not None and self.positive not in self.labels:
            raise ValueError(
                f'positive: no text has the label "{self.positive}": {nearest(self.positive, self.labels)}'
            )
        return self

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The possible labels of the texts; None if only the files have them."""
        labels = [self.crawl.label] if self.crawl else []
        for texts in self.texts:
            if not (texts.label or texts.relabel):
                return None
            labels += [texts.label] if texts.label else texts.relabel.values()
        return tuple(dict.fromkeys(labels))


class ClassifiersConfig(Config):
    """The classifiers to train; none by default."""

    train: tuple[ClassifierSettings, ...] = ()
    """One table `[[classifiers.train]]` per classifier."""

    @model_validator(mode="after")
    def _names_differ(self) -> "ClassifiersConfig":
        if repeated := duplicates(classifier.name for classifier in self.train):
            raise ValueError(f"two classifiers have the name {repeated[0]}: rename one, since the name is its folder")
        return self

    @property
    def active(self) -> bool:
        """Whether the recipe trains a classifier."""
        return bool(self.train)


STAGES = (
    StageSpec(
        "train_classifiers",
        dag="corpus",
        output="classifiers",
        config=ClassifiersConfig,
        section="classifiers",
        inputs={"extracted": Input("extracted")},
    ),
)
