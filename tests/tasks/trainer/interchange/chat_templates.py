"""Chat templates that behave like those of published models, with small tokenizers. Not a test module.

The strings of special tokens, and the order of roles, tools and tokens are those of the models; the wording is not.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from tasks.stages.tokens import TokenizerConfig
from tasks.stages.tokens.bpe import train
from tests.corpora import corpus
from tests.late import transformers
from tests.tasks.trainer.interchange.model_folders import SMALL

CHATML = """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are small.<|im_end|>\\n' -}}
    {% endif %}
    {% set head = '<|im_start|>' + message['role'] + '\\n' %}
    {{- head + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' -}}
{% endif %}
"""
"""Written with blocks on lines of their own, of which `transformers` removes indentation and line break."""

LLAMA_2 = """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
    {%- set system = messages[0]['content'] %}
{%- else %}
    {%- set rest = messages %}
    {%- set system = false %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must be user, assistant, user, assistant') }}
    {%- endif %}
    {%- set content = message['content'] %}
    {%- if loop.first and system %}
        {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

LLAMA_3_1 = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- set system = '' %}
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}
    {{- 'Environment: ipython\\n' }}
{%- endif %}
{{- 'Today: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}
    {%- set question = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) + '\\n\\n' }}
    {%- endfor %}
    {{- question + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('ipython', 'tool') %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('Only one tool call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
        {%- if tools is not none %}{{- '<|eot_id|>' }}{%- else %}{{- '<|eom_id|>' }}{%- endif %}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and message == users[-1] %}
            {{- "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception("Tool call IDs have 9 characters!") }}
            {%- endif %}
            {{- call.function | tojson ~ (", " if not loop.last else "]" + eos_token) }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

_QWEN_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""
_QWEN_CALLS = """
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- set call = call.function or call %}
                {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
                {{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
"""
_QWEN_RESULTS = """
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
"""
QWEN_2_5 = f"""{_QWEN_TOOLS}
{{%- for message in messages %}}
    {{%- if message.role == 'user' or message.role == 'system' and not loop.first %}}
        {{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
    {{%- elif message.role == 'assistant' %}}
        {{{{- '<|im_start|>assistant' }}}}
        {{%- if message.content %}}{{{{- '\\n' + message.content }}}}{{%- endif %}}
        {_QWEN_CALLS}
    {_QWEN_RESULTS}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}
"""
QWEN_3 = f"""{_QWEN_TOOLS}
{{%- set found = namespace(asked=messages | length - 1, searching=true) %}}
{{%- for message in messages[::-1] %}}
    {{%- set index = messages | length - 1 - loop.index0 %}}
    {{%- if found.searching and message.role == 'user' %}}
        {{%- set found.searching = false %}}
        {{%- set found.asked = index %}}
    {{%- endif %}}
{{%- endfor %}}
{{%- for message in messages %}}
    {{%- if message.role == 'user' or message.role == 'system' and not loop.first %}}
        {{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
    {{%- elif message.role == 'assistant' %}}
        {{%- set content = message.content or '' %}}
        {{%- set thinking = '' %}}
        {{%- if message.reasoning_content is string %}}
            {{%- set thinking = message.reasoning_content %}}
        {{%- elif '</think>' in content %}}
            {{%- set thinking = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}}
            {{%- set content = content.split('</think>')[-1].lstrip('\\n') %}}
        {{%- endif %}}
        {{{{- '<|im_start|>assistant\\n' }}}}
        {{%- if loop.index0 > found.asked and (loop.last or thinking) %}}
            {{{{- '<think>\\n' + thinking.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}}}
        {{%- else %}}
            {{{{- content }}}}
        {{%- endif %}}
        {_QWEN_CALLS}
    {_QWEN_RESULTS}
{{%- if add_generation_prompt %}}
    {{{{- '<|im_start|>assistant\\n' }}}}
    {{%- if enable_thinking is defined and enable_thinking is false %}}
        {{{{- '<think>\\n\\n</think>\\n\\n' }}}}
    {{%- endif %}}
{{%- endif %}}
"""

_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


class Family(NamedTuple):
    """A template, its tokens, and the other added tokens: special ones, and plain ones (with `special: false`)."""

    jinja: str
    tokens: Mapping[str, str]
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    tools: bool = False
    pieces: bool = False
    """Whether the tokenizer is one of pieces with a space in front, not of bytes."""


FAMILIES = {
    "SmolLM2": Family(CHATML, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}, _IM),
    "Llama 2": Family(LLAMA_2, {"bos_token": "<s>", "eos_token": "</s>"}, ("<unk>", "<s>", "</s>"), pieces=True),
    "Llama 3.1": Family(
        LLAMA_3_1,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
         "<|eot_id|>"),
        tools=True,
    ),
    "Mistral v0.3": Family(
        MISTRAL,
        {"bos_token": "<s>", "eos_token": "</s>"},
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        tools=True,
        pieces=True,
    ),
    "Qwen 2.5": Family(QWEN_2_5, {"eos_token": "<|im_end|>"}, _IM, _QWEN_PLAIN[:2], tools=True),
    "Qwen 3": Family(QWEN_3, {"eos_token": "<|im_end|>"}, _IM, _QWEN_PLAIN, tools=True),
}  # fmt: skip
DAY = "2026-11-26"


@cache
def tokenizer_json(name: str) -> str:
    """Returns a small tokenizer of a family, with its special tokens."""
    family = FAMILIES[name]
    texts = (row["text"] for row in corpus(40))
    if family.pieces:
        tokenizer = _pieces(list(texts))
    else:
        tokenizer = Tokenizer.from_str(json.dumps(_without_added(train(texts, TokenizerConfig(vocab_size=300)))))
    tokenizer.add_special_tokens(list(family.special))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in family.plain])
    return str(tokenizer.to_str())


def _without_added(tokenizer: Tokenizer) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return {**content, "added_tokens": []}


def _pieces(texts: list[str]) -> Tokenizer:
    """Returns a tokenizer as SentencePiece has it: a space is a character of the pieces, and one precedes each text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator((word for text in texts for word in text.split()), trainer)
    content = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))


def record(name: str) -> dict[str, Any]:
    """Returns the record of a template, as `examples.json` has it."""
    return {"jinja": FAMILIES[name].jinja, "tokens": FAMILIES[name].tokens, "date": DAY}


def write_chat_folder(folder: Path, name: str, *, file: bool = False, stops: bool = False) -> Path:
    """Writes a small random Llama with the tokenizer and the chat template of a family; returns the folder.

    Args:
        folder: path to make.
        name: name of the family.
        file: whether the template is in a file of its own, not in `tokenizer_config.json`.
        stops: whether end-of-text stops a response, too.
    """
    family, content = FAMILIES[name], tokenizer_json(name)
    tokenizer = Tokenizer.from_str(content)
    eos = tokenizer.token_to_id(family.tokens["eos_token"])
    shape = {**SMALL, "max_position_embeddings": 256, "bos_token_id": eos, "eos_token_id": eos}
    config = transformers.LlamaConfig(**shape, vocab_size=tokenizer.get_vocab_size())
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    if stops:
        model.generation_config.eos_token_id = [eos, tokenizer.token_to_id("<|endoftext|>")]
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(content)
    named: dict[str, Any] = {**family.tokens, "model_max_length": 256}
    if file:
        (folder / "chat_template.jinja").write_text(family.jinja)
    else:
        named["chat_template"] = family.jinja
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder
