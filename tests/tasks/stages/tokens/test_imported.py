"""An external tokenizer is used unchanged, or refused with the missing property."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tasks.core.errors import InputError, RecipeError
from tasks.formats.tokens.shard import ShardSet
from tasks.run.recipe import find_recipe
from tasks.stages.tokens import EncodeConfig, TokenizerConfig, bpe
from tasks.stages.tokens.token_import import read
from tests.conftest import file_refs, run_stage_in
from tests.corpora import corpus, documents_in

BPE, ENCODE = "tasks.stages.tokens.bpe", "tasks.stages.tokens.encode"


def made_elsewhere(path: Path, change: Callable[[Tokenizer], None] = lambda made: None) -> str:
    """Writes a byte-level tokenizer whose end-of-text token is <eot>, the last of its entries."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["water river"] * 5, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["<eot>"])
    change(made)
    path.write_text(made.to_str())
    return str(path)


def test_an_imported_tokenizer_is_copied_and_encodes(tmp_path: Path) -> None:
    path = made_elsewhere(tmp_path / "theirs.json")
    documents = documents_in(tmp_path, corpus(30))
    config = TokenizerConfig(file=path, end_of_text="<eot>")
    tokenizer = run_stage_in(tmp_path, BPE, config, {"documents": documents}, kind="tokenizer")
    assert tokenizer.read(bpe.TOKENIZER) == Path(path).read_bytes()
    inputs = {"documents": documents, "tokenizer": tokenizer}
    shards = ShardSet.open(run_stage_in(tmp_path, ENCODE, EncodeConfig(), inputs, kind="shards"))
    last = Tokenizer.from_file(path).get_vocab_size() - 1
    assert shards.format.eos_id == last
    name = shards.names("web")[0]
    assert shards.shard(name).slice(0, 0, int(shards.shard(name).lengths[0]))[-1] == last


def test_the_bytes_of_the_file_are_in_the_fingerprint(tmp_path: Path) -> None:
    config = TokenizerConfig(file=made_elsewhere(tmp_path / "theirs.json"))
    before = list(file_refs(bpe, config))
    assert [ref.role for ref in before] == ["tokenizer"]
    made_elsewhere(tmp_path / "theirs.json", lambda made: made.add_special_tokens(["<more>"]))
    assert list(file_refs(bpe, config)) != before
    assert list(file_refs(bpe, TokenizerConfig())) == []


def test_a_chat_template_beside_the_file_comes_with_it(tmp_path: Path) -> None:
    config = TokenizerConfig(file=made_elsewhere(tmp_path / "theirs.json"), end_of_text="<eot>")
    before, documents = list(file_refs(bpe, config)), documents_in(tmp_path, corpus(5))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}")
    assert list(file_refs(bpe, config)) == before, "its tokens are not known"
    stated = {"bos_token": "<bot>", "eos_token": "<other>", "stop_tokens": ["<eot>"], "padding_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    assert {ref.role for ref in file_refs(bpe, config)} == {"tokenizer", "chat_template"}
    tokenizer = run_stage_in(tmp_path, BPE, config, {"documents": documents}, kind="tokenizer")
    assert tokenizer.read("chat_template.jinja") == b"{{ bos_token }}"
    named = {"bos_token": "<bot>", "eos_token": "<eot>", "stop_tokens": ["<eot>"]}
    assert json.loads(tokenizer.read(bpe.TOKENIZER_CONFIG)) == named


def compose(made: Tokenizer) -> None:
    made.normalizer = normalizers.NFC()


def test_a_tokenizer_that_only_composes_characters_is_accepted(tmp_path: Path) -> None:
    path = made_elsewhere(tmp_path / "theirs.json", compose)
    assert read(path, "<eot>") == Path(path).read_text()


def fold(made: Tokenizer) -> None:
    made.normalizer = normalizers.NFKC()


def with_a_gap(path: str) -> str:
    content = json.loads(Path(path).read_text())
    vocabulary = content["model"]["vocab"]
    highest = max(vocabulary, key=lambda entry: vocabulary[entry])
    vocabulary[highest] += 10
    content["added_tokens"][-1]["id"] += 20
    Path(path).write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("end_of_text", "change", "said"),
    [
        ("<|endoftext|>", lambda made: None, r"has no special token <\|endoftext\|>.*its special tokens are: <eot>"),
        ("water", lambda made: None, r"has no special token water"),
        ("<eot>", fold, r"is not byte-level: .* is decoded as"),
    ],
)
def test_a_lossy_tokenizer_or_one_without_end_of_text_is_refused(
    tmp_path: Path, run_stage: Callable, end_of_text: str, change: Callable[[Tokenizer], None], said: str
) -> None:
    config = TokenizerConfig(file=made_elsewhere(tmp_path / "theirs.json", change), end_of_text=end_of_text)
    with pytest.raises(InputError, match=said):
        run_stage(BPE, config, {"documents": documents_in(tmp_path, corpus(3))})


def test_an_invalid_tokenizer_or_one_with_gaps_is_refused(tmp_path: Path, run_stage: Callable) -> None:
    documents = documents_in(tmp_path, corpus(3))
    path = tmp_path / "theirs.json"
    path.write_text('{"version": "1.0"}')
    with pytest.raises(InputError, match=r"theirs\.json is not a Hugging Face tokenizer"):
        run_stage(BPE, TokenizerConfig(file=str(path)), {"documents": documents})
    gap = TokenizerConfig(file=with_a_gap(made_elsewhere(path)), end_of_text="<eot>")
    with pytest.raises(InputError, match=r"theirs\.json has .* entries but ids up to"):
        run_stage(BPE, gap, {"documents": documents})
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read"):
        run_stage(BPE, TokenizerConfig(file=str(tmp_path / "nowhere.json")), {"documents": documents})
    with pytest.raises(RecipeError, match=r'tokenizer\.file: .*the path "theirs\.json" is not absolute'):
        find_recipe("demo").override({"tokenizer.file": "theirs.json"})
