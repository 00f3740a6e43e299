"""Chat templates of imported models: conversations -> text, as `transformers` renders it, and text -> tokens.

A template is Jinja text with the tokens that it calls `bos_token` and `eos_token`. It is untrusted code: it runs in
Jinja's sandbox, sees only JSON values, and has no clock. Its special tokens become special tokens; the same characters
in the data of a row (contents, tool calls, tools) stay plain text. For that, the data are rendered with reserved
characters in place of these, one for one, so that a template that trims or splits a content does what it always does.

Tokens equal those of `apply_chat_template` in transformers 5.23, with `sanitize_control_tokens` for data that contain
special tokens. A role must be one of ROLES, because some templates build special tokens from it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.errors import InputError

FILE = "chat_template.jinja"
"""Name of the template in a model folder, and in the artifact of an imported tokenizer."""
JINJA = "jinja"
"""Key of a record of an imported template that has its text."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")

_FIRST, _LAST = 0x10FE00, 0x10FFFD
"""Reserved characters, at the end of the last private plane of Unicode."""
_BEGIN, _END = chr(_LAST - 1), chr(_LAST)
"""Around the text of `{% generation %}`."""
_RESERVED = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the reasoning of a message; the first one is that which templates read, and the second of gpt-oss."""
_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def stated_template(file: str | None, settings: Mapping[str, Any]) -> str:
    """Returns the chat template of a model folder as `transformers` chooses it; "" if there is none.

    Args:
        file: content of FILE, which precedes the settings; None: it is not there.
        settings: content of `tokenizer_config.json`; of several named templates in it, `default` is chosen.

    Raises:
        KeyError, TypeError: the settings have something else than templates.
    """
    if file is not None:
        return file
    stated = settings.get("chat_template") or ""
    if isinstance(stated, list):
        stated = {one["name"]: one["template"] for one in stated}.get("default", "")
    if not isinstance(stated, str):
        raise TypeError(f"{type(stated).__name__} instead of text")
    return stated


@dataclass(frozen=True)
class Conversation:
    """The data of a row for a template, with reserved characters in place of special tokens (`ChatTemplate.read`)."""

    messages: tuple[Mapping[str, Any], ...]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class Rendered(NamedTuple):
    """A rendered conversation, and the spans [begin, end) of its `{% generation %}` blocks; None: it has none."""

    text: str
    generated: tuple[tuple[int, int], ...] | None


class ChatTemplate:
    """A chat template with its tokenizer.

    Args:
        record: {"jinja": text, "tokens": {"bos_token": ..., "eos_token": ...}, "date": "2026-11-26" or ""}.
        tokenizer: content of a `tokenizer.json`.

    Raises:
        InputError: the text is not a Jinja template.
    """

    def __init__(self, record: Mapping[str, Any], tokenizer: str) -> None:
        self.record = record
        self._template = _compiled(record[JINJA], record.get("date", ""))
        self._tokenizer, self._plain = Tokenizer.from_str(tokenizer), Tokenizer.from_str(tokenizer)
        self._plain.encode_special_tokens = True
        for one in (self._tokenizer, self._plain):  # another processor might shift offsets
            one.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special = sorted((token.content for token in added if token.special), key=len, reverse=True)
        characters = sorted({character for token in self.special for character in token})
        if len(characters) > _LAST - 1 - _FIRST:
            raise InputError(f"special tokens have {len(characters)} different characters", "use fewer special tokens")
        self._hiding = {ord(character): chr(_FIRST + n) for n, character in enumerate(characters)}
        self._revealing = {ord(hidden): chr(character) for character, hidden in self._hiding.items()}
        self._special = _any_of(self.special)
        hidden = [token.translate(self._hiding) for token in self.special]
        self._hidden = re.compile(f"({_any_of(hidden).pattern}|{_RESERVED.pattern}+)")
        self._newline = self._tokenizer.encode("\n", add_special_tokens=False).ids

    def read(self, messages: Any, tools: Any = None, variables: Any = None) -> Conversation:
        """Returns the data of a row for `render`; fields of messages that are None are left out.

        Args:
            messages: list of {role, content, ...}.
            tools: list of JSON schemas, or None; a text is parsed as JSON.
            variables: further variables of the template, such as {"enable_thinking": False}, or None.

        Raises:
            ValueError: they are of another form, or contain a reserved character.
        """
        tools = json.loads(tools) if isinstance(tools, str) else tools
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise ValueError("tools is no list of objects")
        if not isinstance(variables or {}, dict):
            raise ValueError("chat_template_kwargs is no object")
        checked = tuple(_message(message) for message in messages)
        hidden = self._hide([list(checked), tools, variables or {}])
        return Conversation(tuple(hidden[0]), hidden[1], hidden[2])

    def render(self, conversation: Conversation, count: int | None = None, *, prompt: bool = False) -> Rendered:
        """Returns the text of the first `count` messages (None: of all), with reserved characters.

        Args:
            conversation: result of `read`.
            count: number of messages.
            prompt: whether the prompt for a response follows (`add_generation_prompt`).

        Raises:
            ValueError: the template refuses the conversation, with its own message.
            InputError: the template reads the date of the day, and the record has none.
        """
        variables = {
            **self.record["tokens"],
            **conversation.variables,
            "messages": [_with_reasoning(message) for message in conversation.messages[:count]],
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        try:
            text = self._template.render(variables)
        except _FAILURES as error:
            raise ValueError(f"the chat template refuses it: {' '.join(str(error).split())}") from None
        return _without_marks(text)

    def special_spans(self, text: str, begin: int) -> list[tuple[int, int]]:
        """Returns the spans of the special tokens that the template has written into a text, from `begin` on."""
        return [match.span() for match in self._special.finditer(text, begin)]

    def reveal(self, text: str) -> str:
        """Returns a rendered text without reserved characters."""
        return text.translate(self._revealing)

    def encode(self, text: str) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the tokens of a rendered text, and their spans in code points, int64 of shape (tokens, 2)."""
        ids: list[int] = []
        offsets: list[NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]
        at = 0
        for number, piece in enumerate(self._hidden.split(text)):
            if piece:
                tokenizer = self._plain if number % 2 else self._tokenizer
                piece_ids, piece_offsets = self._encode(tokenizer, self.reveal(piece), within=at > 0)
                ids += piece_ids
                offsets.append(piece_offsets + at)
            at += len(piece)
        return ids, np.concatenate(offsets)

    def _encode(self, tokenizer: Tokenizer, text: str, *, within: bool) -> tuple[list[int], NDArray[np.int64]]:
        """Encodes a piece; one from within a text after a line break, so that no space is put before it."""
        if within:
            encoding = tokenizer.encode(f"\n{text}", add_special_tokens=False)
            if encoding.ids[: len(self._newline)] == self._newline:
                spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)[len(self._newline) :]
                return encoding.ids[len(self._newline) :], spans - 1
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def _hide(self, value: Any) -> Any:
        """Returns JSON data with reserved characters in place of special tokens, also in keys."""
        if isinstance(value, str):
            if _RESERVED.search(value):
                raise ValueError(f"a text has a character of U+{_FIRST:X} to U+{_LAST:X}, which are reserved")
            return self._special.sub(lambda match: match[0].translate(self._hiding), value)
        if isinstance(value, Mapping):
            return {self._hide(key): self._hide(item) for key, item in value.items()}
        return [self._hide(item) for item in value] if isinstance(value, list) else value


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise ValueError(f"a message has no role of {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str | None):
        raise ValueError("the content of a message is not a text")
    return {name: value for name, value in message.items() if value is not None}


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a message with its reasoning also under the names that templates read."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return dict(message) if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _without_marks(text: str) -> Rendered:
    """Returns a text without the marks of `{% generation %}`, and what was between them."""
    if _BEGIN not in text:
        return Rendered(text, None)
    spans: list[tuple[int, int]] = []
    kept: list[str] = []
    begin = length = 0
    for piece in re.split(f"([{_BEGIN}{_END}])", text):
        if piece == _BEGIN:
            begin = length
        elif piece == _END:
            spans.append((begin, length))
        else:
            kept.append(piece)
            length += len(piece)
    return Rendered("".join(kept), tuple(spans))


def _compiled(text: str, today: str) -> Any:
    """Returns a template in the environment of `transformers`, without a clock."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        if not today:
            raise InputError(
                "the chat template writes the date of the day into conversations, which would differ from day to day",
                'set [examples] date = "2026-11-26" or another day',
            )
        return date.fromisoformat(today).strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise InputError(
            f"the chat template is not a Jinja template (line {error.lineno}: {error.message})",
            "correct it in the model folder, or set [examples.template]",
        ) from None


class _GenerationBlocks(Extension):
    """Surrounds the text of `{% generation %}` blocks, the tokens to learn, with reserved characters."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Returns the call of `_mark` for a block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Macro) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class _Dict:
    """The constructor `dict` of templates, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """Refuses names that begin with an underscore, which reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # so that `namespace(self=...)` works
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name} begins with an underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON; unlike the filter of Jinja, it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
