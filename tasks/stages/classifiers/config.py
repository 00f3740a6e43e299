"""Settings of the stage train_classifiers. pydantic only: the Airflow dag-processor imports it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tasks.core.config import Config, absolute, duplicates, nearest

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class Texts(Config):
    """Files of texts to learn from: JSON lines, plain or compressed (.gz, .zst, .bz2)."""

    path: Annotated[str, AfterValidator(absolute)]
    """Absolute glob (`**` for any depth), on the machine where the stage runs or as a URL on an object store
    (s3://bucket/reference/*.jsonl.zst)."""
    text_field: str = "text"
    """The field that holds the text."""
    label: str = ""
    """The label of all of them; "" takes each row's own from `label_field`."""
    label_field: str = "label"
    """The field that holds the label, where `label` is empty."""
    relabel: dict[str, str] = {}
    """What a row's label is called here, as `{offensive = "toxic", hate_speech = "toxic"}`; rows of labels that are not
    named are left out. Empty: labels stay as they are."""
    group_field: str = ""
    """The field that says what belongs together (site, book, author); all of a group lands on one side of the split."""

    @model_validator(mode="after")
    def _one_way_to_labels(self) -> "Texts":
        if self.label and self.relabel:
            raise ValueError("label names all texts, relabel the labels of rows: give one of them")
        return self


class CrawlTexts(Config):
    """A sample of the crawl's own documents, under one label: what the reference text is told apart from."""

    label: str = "crawl"
    """Its label."""
    documents: int = Field(default=100_000, ge=1)
    """How many are drawn, by a hash of their id. DCLM takes 100,000 of each side."""
    sources: tuple[str, ...] = ("web",)
    """Sources of documents that are drawn from."""
    split_by: Literal["host", "document"] = "host"
    """What lands on one side of the split as a whole. Pages of a host resemble one another, so held-out scores are fair
    by host; a crawl of a few hosts has none to spare, and is split by document."""


class FastTextSettings(Config):
    """fastText's own settings; by default word pairs and fastText's defaults, as DCLM (arXiv 2406.11794) has them."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the texts. A few thousand short texts want 25."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Step at the beginning; it falls to 0."""
    dimensions: int = Field(default=100, ge=1)
    """Length of the vectors. 16 to 32 do as well on small data."""
    word_ngrams: int = Field(default=2, ge=1, le=5)
    """Longest run of words that is a feature."""
    char_ngrams: tuple[int, int] = (0, 0)
    """Shortest and longest run of letters that is a feature; (0, 0) for none. (3, 6) helps where spelling varies."""
    buckets: int = Field(default=200_000, ge=1)
    """Places for hashed runs; with `dimensions` it decides the size of the file: 200,000 x 100 x 4 bytes are 80 MB."""
    min_count: int = Field(default=1, ge=1)
    """How often a word must occur to be one of its own."""
    quantised: bool = False
    """Compress the model some tenfold (product quantisation); scores change a little, and are measured on it."""

    @model_validator(mode="after")
    def _a_range(self) -> "FastTextSettings":
        shortest, longest = self.char_ngrams
        if not (shortest == longest == 0 or 1 <= shortest <= longest <= 10):
            raise ValueError("char_ngrams is (0, 0), or shortest and longest within 1 to 10")
        return self


class ClassifierSettings(Config):
    """One classifier: what it learns from, how, and how it is tested."""

    name: Name
    """What annotators and reports call it; its folder in the artifact."""
    method: Literal["fasttext", "signals"] = "fasttext"
    """`fasttext` reads words; `signals` is a logistic regression over a dozen numbers of the surface, for a few hundred
    labelled texts with two labels (see `tasks.filters.learned.signals`)."""
    texts: tuple[Texts, ...] = Field(min_length=1)
    """Labelled texts and reference texts."""
    crawl: CrawlTexts | None = None
    """Also a sample of the crawl, or not."""
    positive: str = ""
    """The label whose probability is the score. "" for topics, which have no such label."""
    chars: int = Field(default=2000, ge=1)
    """Characters from the beginning of a text that are read, in training and ever after."""
    max_per_label: int | None = Field(default=None, ge=1)
    """Most texts of one label: those of the lowest hash. None: all there are."""
    heldout_share: float = Field(default=0.1, gt=0, lt=0.9)
    """Share of the groups (texts, where they have none) that is kept from training, for the scores."""
    seed: int = Field(default=0, ge=0)
    """Another seed draws, splits and begins differently."""
    fasttext: FastTextSettings = FastTextSettings()
    """Settings of the method `fasttext`."""
    ridge: float = Field(default=20.0, gt=0)
    """Strength of the penalty on large weights, for the method `signals`."""
    purpose: str = ""
    """One sentence for the model card: what it is for."""

    @model_validator(mode="after")
    def _fits_the_method(self) -> "ClassifierSettings":
        if self.method == "signals" and not self.positive:
            raise ValueError("the method signals tells two labels apart: name the positive one")
        if self.positive and self.labels is not None and self.positive not in self.labels:
            raise ValueError(
                f'positive: no text bears the label "{self.positive}": {nearest(self.positive, self.labels)}'
            )
        return self

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels that texts may bear; None where rows bear labels of which their files alone know."""
        found = [self.crawl.label] if self.crawl else []
        for texts in self.texts:
            if not (texts.label or texts.relabel):
                return None
            found += [texts.label] if texts.label else texts.relabel.values()
        return tuple(dict.fromkeys(found))


class ClassifiersConfig(Config):
    """The classifiers to train; none by default."""

    train: tuple[ClassifierSettings, ...] = ()
    """One table `[[classifiers.train]]` each."""

    @model_validator(mode="after")
    def _names_differ(self) -> "ClassifiersConfig":
        if several := duplicates(one.name for one in self.train):
            raise ValueError(f"two classifiers are called {several[0]}: their folders would be one")
        return self

    @property
    def wanted(self) -> bool:
        """Whether there is anything to train."""
        return bool(self.train)
