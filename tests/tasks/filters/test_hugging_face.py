"""The forward pass against PyTorch's encoder layers, on small random models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from tasks.core.errors import InputError
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.hugging_face import HuggingFace, HuggingFaceMeasures, ModelScore
from tasks.filters.learned.bert import SequenceClassifier

WIDTH, HEADS, LAYERS, POSITIONS, LABELS = 16, 4, 2, 24, 3
VOCABULARY = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "and", "dog"]
TEXTS = ["the cat sat", "", "a dog sat on the mat and the cat " * 9, "dog"]
# Names of embeddings, attention, inner layer and head in the files of each family.
NAMES = {
    "bert": {
        "prefix": "bert.", "layer": "encoder.layer", "q": "attention.self.query", "k": "attention.self.key",
        "v": "attention.self.value", "out": "attention.output.dense", "norm1": "attention.output.LayerNorm",
        "inner": "intermediate.dense", "outer": "output.dense", "norm2": "output.LayerNorm",
        "pool": "bert.pooler.dense", "head": "classifier",
    },
    "distilbert": {
        "prefix": "distilbert.", "layer": "transformer.layer", "q": "attention.q_lin", "k": "attention.k_lin",
        "v": "attention.v_lin", "out": "attention.out_lin", "norm1": "sa_layer_norm", "inner": "ffn.lin1",
        "outer": "ffn.lin2", "norm2": "output_layer_norm", "pool": "pre_classifier", "head": "classifier",
    },
}  # fmt: skip
NAMES["roberta"] = {
    **NAMES["bert"],
    "prefix": "roberta.",
    "pool": "classifier.dense",
    "head": "classifier.out_proj",
}
NAMES["xlm-roberta"] = NAMES["roberta"]


class Reference(nn.Module):
    """A post-norm encoder of PyTorch layers with a head, as in the papers."""

    def __init__(self, family: str) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.family, self.first = family, 2 if "roberta" in family else 0
        self.words, self.positions = nn.Embedding(len(VOCABULARY), WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.kinds = nn.Embedding(1, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        layers = (
            nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.0, "gelu", 1e-12, batch_first=True) for _ in range(LAYERS)
        )
        self.layers = nn.ModuleList(layers)
        self.pool, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, LABELS)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.7)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.weight, mean=1.0, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids) + self.positions(torch.arange(len(ids)) + self.first)
        hidden = self.norm(hidden + (0 if self.family == "distilbert" else self.kinds.weight[0]))[None]
        for layer in self.layers:
            hidden = layer(hidden)
        pooled = self.pool(hidden[0, 0])
        return self.head(pooled.relu() if self.family == "distilbert" else pooled.tanh())

    def stored(self) -> dict[str, Tensor]:
        """Returns the weights under the family's names."""
        names = NAMES[self.family]
        prefix = names["prefix"]
        pairs = {
            f"{prefix}embeddings.LayerNorm": self.norm, names["pool"]: self.pool, names["head"]: self.head,
        }  # fmt: skip
        weights = {
            f"{prefix}embeddings.word_embeddings.weight": self.words.weight,
            f"{prefix}embeddings.position_embeddings.weight": self.positions.weight,
        }
        if self.family != "distilbert":
            weights[f"{prefix}embeddings.token_type_embeddings.weight"] = self.kinds.weight
        for number, layer in enumerate(self.layers):
            at = f"{prefix}{names['layer']}.{number}."
            attention = layer.self_attn
            for which, weight, bias in zip(
                "qkv", attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
            ):
                weights |= {f"{at}{names[which]}.weight": weight, f"{at}{names[which]}.bias": bias}
            pairs |= {
                f"{at}{names['out']}": attention.out_proj, f"{at}{names['inner']}": layer.linear1,
                f"{at}{names['outer']}": layer.linear2, f"{at}{names['norm1']}": layer.norm1,
                f"{at}{names['norm2']}": layer.norm2,
            }  # fmt: skip
        for name, module in pairs.items():
            weights |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
        return {name: weight.detach().contiguous().clone() for name, weight in weights.items()}


def model_in(folder: Path, family: str = "bert", **changes: object) -> tuple[Reference, Tokenizer]:
    """Writes a small model in the layout of Hugging Face; returns it and its tokenizer."""
    reference = Reference(family).eval()
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    config = {
        "model_type": family, "num_attention_heads": HEADS, "n_heads": HEADS, "num_hidden_layers": LAYERS,
        "n_layers": LAYERS, "max_position_embeddings": POSITIONS, "pad_token_id": 1, "layer_norm_eps": 1e-12,
        "id2label": {"0": "good", "1": "bad", "2": "unsure"}, **changes,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(reference.stored(), folder / "model.safetensors")
    return reference, tokenizer


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_every_architecture_agrees_with_torch_encoder_layers(tmp_path: Path, family: str) -> None:
    reference, tokenizer = model_in(tmp_path, family)
    tokenizer.enable_truncation(POSITIONS - reference.first)
    with torch.no_grad():
        expected = [reference(torch.tensor(tokenizer.encode(text).ids)).softmax(-1).tolist() for text in TEXTS]
    found = SequenceClassifier(str(tmp_path)).scores(TEXTS, 512)
    assert found == pytest.approx(np.array(expected), abs=1e-5)
    assert np.std(found, axis=0).min() > 0.01


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [
        ("multi_label_classification", lambda logits: logits.sigmoid()),
        ("regression", lambda logits: logits),
    ],
)
def test_the_output_follows_the_problem_type_of_the_model(tmp_path: Path, kind: str, meaning: object) -> None:
    reference, tokenizer = model_in(tmp_path, problem_type=kind)
    with torch.no_grad():
        expected = meaning(reference(torch.tensor(tokenizer.encode("the cat").ids)))  # type: ignore[operator]
    assert SequenceClassifier(str(tmp_path)).scores(["the cat"], 512)[0] == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_text_scores_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    model_in(tmp_path)
    model = SequenceClassifier(str(tmp_path))
    texts = [*TEXTS, *(f"the {word}" for word in VOCABULARY)] * 3
    alone = np.concatenate([model.scores([text], 512) for text in texts])
    assert model.scores(texts, 512) == pytest.approx(alone, abs=1e-5)


def test_the_annotator_names_its_columns_and_reads_each_folder_once(tmp_path: Path) -> None:
    model_in(tmp_path / "a")
    model_in(tmp_path / "b", "distilbert")
    annotator = HuggingFaceMeasures(
        scores={
            "fine": ModelScore(folder=str(tmp_path / "a"), label="good"),
            "foul": ModelScore(folder=str(tmp_path / "a"), label="bad"),
            "other": ModelScore(folder=str(tmp_path / "b"), label="good"),
        }
    )
    annotator.prepare({})
    measured = fields(annotator.annotate(DocumentBatch(TEXTS)))
    assert set(measured) == {"fine", "foul", "other"}
    assert ((measured["fine"] + measured["foul"]) <= 1.001).all()
    [(reason, mask)] = HuggingFace(at_most={"foul": -0.5}).reasons(measured)
    assert (reason, mask.all()) == ("hugging_face_foul_high", True)
    assert len(annotator.external()) == 6


@pytest.mark.parametrize(
    ("changes", "label", "said"),
    [
        ({"model_type": "deberta-v2"}, "good", "deberta-v2"),
        ({"hidden_act": "swish"}, "good", "swish"),
        ({}, "LABEL_0", 'no label "LABEL_0"'),
    ],
)
def test_an_unsupported_model_is_refused_by_name(tmp_path: Path, changes: dict, label: str, said: str) -> None:
    model_in(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InputError, match=said):
        HuggingFaceMeasures(scores={"x": ModelScore(folder=str(tmp_path), label=label)}).prepare({})


def test_a_folder_without_weights_is_an_error_that_names_the_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        HuggingFaceMeasures(scores={"x": ModelScore(folder=str(tmp_path), label="good")}).prepare({})
