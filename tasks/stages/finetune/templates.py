"""Dialogues -> texts with their learned parts, by the template of the recipe or the chat template of an imported base.

The template of a version is described by a record, which is in `examples.json`, in `run.json` of the fine-tuning, and
in `model.json` of the registered model: the fields of `Template`, or {jinja, tokens, date, stop} of an imported one
(`tasks.trainer.interchange.chat_template`; `stop` are the tokens that end a response).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tasks.core.artifact import Artifact
from tasks.stages.finetune import ExamplesConfig, Template
from tasks.stages.finetune.rows import Dialogue
from tasks.trainer.interchange.chat_template import FILE, JINJA, ChatTemplate, Conversation

OWN_ROLES = ("system", "user", "assistant")

Segments = list[tuple[str, bool]]
"""Consecutive parts of one text, each with whether its tokens are learned."""

_ANY_DAY = "2000-01-01"
_PROBE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


class DialogueTemplate(Protocol):
    """Renders the dialogues of a row."""

    def texts(self, dialogue: Dialogue) -> list[Segments]:
        """Returns the texts to learn from; raises ValueError, with the reason, if the template refuses the dialogue."""

    def answer(self, question: str, text: str) -> Dialogue:
        """Returns the dialogue of a chunk, with a question or ""."""


def template_record(config: ExamplesConfig, tokenizer: Artifact) -> dict[str, Any]:
    """Returns the record of the template: the recipe's if it sets one, else the imported one, else the default.

    Raises:
        InputError: the imported one is not a Jinja template.
    """
    imported = imported_record(tokenizer, config.date) if config.template == Template() else None
    return imported or config.template.model_dump(mode="json")


def imported_record(tokenizer: Artifact, date: str = "") -> dict[str, Any] | None:
    """Returns the record of the chat template that was imported with a tokenizer, or None.

    Args:
        tokenizer: the artifact.
        date: the day that the template may write into conversations, or "".

    Raises:
        InputError: it is not a Jinja template.
    """
    if FILE not in tokenizer.files(FILE):
        return None
    named = json.loads(tokenizer.read(_TOKENIZER_CONFIG))
    tokens = {name: named[name] for name in ("bos_token", "eos_token") if name in named}
    record = {JINJA: tokenizer.read(FILE).decode(), "tokens": tokens, "date": date}
    probed = ChatTemplate({**record, "date": date or _ANY_DAY}, tokenizer.read(_TOKENIZER).decode())
    stop = [*named.get("stop_tokens", ()), named["eos_token"], *ImportedTemplate(probed).ends()]
    return {**record, "stop": list(dict.fromkeys(stop))}


class OwnTemplate:
    """Messages in the text `before` and `after` of their roles.

    Args:
        template: the settings.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    def texts(self, dialogue: Dialogue) -> list[Segments]:
        """See `DialogueTemplate`."""
        return [list(self._segments(dialogue))]

    def _segments(self, dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
        learned = set(dialogue.learned)
        for at, message in enumerate(dialogue.messages):
            role, content = message.get("role"), message.get("content")
            if role not in OWN_ROLES or not isinstance(content, str):
                raise ValueError(f"a message has no role of {', '.join(OWN_ROLES)} with a text as content")
            turn = getattr(self._template, role)
            yield turn.before, False
            yield content + turn.after, at in learned

    def answer(self, question: str, text: str) -> Dialogue:
        """See `DialogueTemplate`; without a question there is only the response."""
        asked = [{"role": "user", "content": question}] if question else []
        return Dialogue([*asked, {"role": "assistant", "content": text}])


class ImportedTemplate:
    """The chat template of an imported model.

    What is learned of a response is what the model will generate: the text after the prompt for it, up to the last
    special token if only white space follows. A template can render a response otherwise when messages follow (Qwen 3
    omits its thinking, Mistral moves the tools), or the prompt before it (Mistral writes the system message only while
    the question is the last one). Such a response becomes a text of its own: its prompt, and the response.
    A template with `{% generation %}` blocks says itself what is learned of the whole conversation.

    Args:
        template: the template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def texts(self, dialogue: Dialogue) -> list[Segments]:
        """See `DialogueTemplate`; a preference has one text per answer."""
        conversation = self.template.read(dialogue.messages, dialogue.tools, dialogue.variables)
        whole = self.template.render(conversation)
        for number in dialogue.learned if whole.generated is not None else ():
            _check_content(whole.text, conversation, number)
        if whole.generated is not None:
            begin = len(self._prompt(conversation, dialogue.first)) if dialogue.first else 0
            return [_segments(whole.text, [(first, end) for first, end in whole.generated if first >= begin])]
        spans: list[tuple[int, int]] = []
        texts: list[Segments] = []
        for number in dialogue.learned:
            until, begin, end = self._response(conversation, number)
            if whole.text.startswith(until[:end]):
                spans.append((begin, end))
            elif dialogue.first and (number != dialogue.learned[0] or number + 1 != len(dialogue.messages)):
                raise ValueError(
                    f"the chat template renders message {number + 1} otherwise when others follow, so the answer is "
                    "not one text: end it there"
                )
            else:
                texts.append(_segments(until, [(begin, end)]))
        return [*texts, _segments(whole.text, spans)] if spans or not texts else texts

    def ends(self) -> list[str]:
        """Returns the special token that ends a response, or [] if there is none."""
        try:
            text, begin, end = self._response(self.template.read(_PROBE), 1)
        except ValueError:
            return []
        return [text[first:last] for first, last in self.template.special_spans(text, begin) if last == end]

    def answer(self, question: str, text: str) -> Dialogue:
        """See `DialogueTemplate`; without a question the user's message is empty, because templates need one."""
        return Dialogue([{"role": "user", "content": question}, {"role": "assistant", "content": text}])

    def _prompt(self, conversation: Conversation, number: int) -> str:
        return self.template.render(conversation, number, prompt=True).text

    def _response(self, conversation: Conversation, number: int) -> tuple[str, int, int]:
        """Returns the text up to message `number`, and where in it the response begins and ends."""
        text, prompt = self.template.render(conversation, number + 1).text, self._prompt(conversation, number)
        if not text.startswith(prompt) and (response := self._response_elsewhere(conversation, number, text, prompt)):
            text = prompt + response
        if not text.startswith(prompt):
            shared = next(at for at, (one, other) in enumerate(zip(f"{text}\0", prompt, strict=False)) if one != other)
            raise ValueError(
                f"the chat template does not begin message {number + 1} with the prompt for it: after "
                f"{self.template.reveal(prompt[max(0, shared - 30) : shared])!r} the prompt has "
                f"{self.template.reveal(prompt[shared : shared + 30])!r}"
            )
        _check_content(text[len(prompt) :], conversation, number)
        special = self.template.special_spans(text, len(prompt))
        end = special[-1][1] if special and not text[special[-1][1] :].strip() else len(text)
        return text, len(prompt), end

    def _response_elsewhere(self, conversation: Conversation, number: int, text: str, prompt: str) -> str:
        """Returns the response in a text that begins otherwise than its prompt, but has its end; "" if it does not.

        The end of the prompt is from the question on, with a special token, which no response contains.
        """
        question = str(conversation.messages[number - 1].get("content", "")).strip() if number else ""
        end = prompt[prompt.rindex(question) :] if question and question in prompt else ""
        return text.rpartition(end)[2] if end in text and self.template.special_spans(end, 0) else ""


def _check_content(text: str, conversation: Conversation, number: int) -> None:
    """Raises ValueError if the last line of a response is not in its text: some templates want lists of parts."""
    message = conversation.messages[number]
    lines = str(message.get("content", "")).strip().splitlines()
    if lines and not message.get("tool_calls") and lines[-1].strip() not in text:
        raise ValueError(f"the chat template leaves out the content of message {number + 1}")


def _segments(text: str, spans: list[tuple[int, int]]) -> Segments:
    segments: Segments = []
    at = 0
    for begin, end in spans:
        segments += [(text[at:begin], False), (text[begin:end], True)]
        at = end
    return [*segments, (text[at:], False)]


def opened(record: Mapping[str, Any], tokenizer: str) -> OwnTemplate | ImportedTemplate:
    """Returns the template of a record (`template_record`); `tokenizer` is the content of `tokenizer.json`."""
    if JINJA in record:
        return ImportedTemplate(ChatTemplate(record, tokenizer))
    return OwnTemplate(Template.model_validate(record))
