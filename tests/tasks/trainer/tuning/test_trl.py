"""DPO compared with trl's trainer: equal loss and gradients for the same weights and pairs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tasks.trainer.interchange.huggingface import llama_config, llama_name
from tasks.trainer.model.transformer import Transformer, build
from tests.late import transformers
from tests.tasks.trainer.tuning.test_preference import BETA, MODEL, PAIRS, model, packed

VOCABULARY, EOS = 20, "<0>"


def as_llama(ours: Transformer) -> Any:
    config = llama_config(ours.config, VOCABULARY, 64, 0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**config, "attn_implementation": "eager"}))
    weights = {llama_name(name): weight.detach().clone() for name, weight in ours.state_dict().items()}
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}  # tied
    return theirs


def tokenizer() -> Any:
    """Each number is a token."""
    words = Tokenizer(WordLevel({EOS: 0, **{str(number): number for number in range(1, VOCABULARY)}}, EOS))
    words.pre_tokenizer = WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=EOS, bos_token=EOS, pad_token=EOS)


def trainer_of(policy: Any, reference: Any, folder: Path) -> Any:
    import trl
    from datasets import Dataset

    rows = [
        {
            "prompt": f"{EOS} " + " ".join(map(str, prompt)),
            "chosen": " " + " ".join(map(str, chosen)),
            "rejected": " " + " ".join(map(str, rejected)),
        }
        for (prompt, chosen), (_, rejected) in PAIRS
    ]
    args = trl.DPOConfig(str(folder), beta=BETA, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False)
    data = Dataset.from_list(rows)
    return trl.DPOTrainer(policy, reference, args, train_dataset=data, processing_class=tokenizer())


@pytest.mark.oracle("trl")
def test_loss_and_gradient_equal_those_of_trl(tmp_path: Path) -> None:
    policy, reference = model(), build(MODEL, VOCABULARY, 1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.1)
    theirs = as_llama(policy)
    trainer = trainer_of(theirs, as_llama(reference), tmp_path)
    batch = trainer.data_collator([trainer.train_dataset[number] for number in range(len(PAIRS))])
    # Both answers of a pair with the prompt, and end-of-text behind them.
    assert [
        row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ] == [[0, *prompt, *answer, 0] for at in (0, 1) for pair in PAIRS for prompt, answer in [pair[at]]]
    expected = trainer.compute_loss(theirs.train(), batch)
    expected.backward()
    loss = policy.loss(*packed([text for pair in PAIRS for text in pair], 24)) / len(PAIRS)
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-5)
    assert abs(loss.item() - 0.6931) > 1e-3
    found = dict(theirs.named_parameters())
    for name, weight in policy.named_parameters():
        torch.testing.assert_close(weight.grad, found[llama_name(name)].grad, atol=1e-6, rtol=1e-4, msg=name)
