"""Chat templates of Hugging Face: the template of a fine-tuning as Jinja, for `apply_chat_template`.

What it renders, tokenised as a whole, are the tokens that were trained on: end-of-text, the turns, end-of-text; or, to
be answered, the turns and the beginning of a response.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.errors import InputError

ROLES = ("system", "user", "assistant")


def chat_template(template: Mapping[str, Any]) -> str:
    """Returns the Jinja text.

    Args:
        template: for each of ROLES the text `before` and `after` the content of a message.
    """
    turns = "".join(
        f"{{% {'if' if number == 0 else 'elif'} message['role'] == '{role}' %}}"
        f"{{{{ {_text(template[role]['before'])} + message['content'] + {_text(template[role]['after'])} }}}}"
        for number, role in enumerate(ROLES)
    )
    known = ", ".join(ROLES)
    unknown = f"{{{{ raise_exception('a message has the role ' + message['role'] + ': known are {known}') }}}}"
    return (
        "{{ bos_token }}{% for message in messages %}"
        f"{turns}{{% else %}}{unknown}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {_text(template['assistant']['before'])} }}}}"
        "{% else %}{{ eos_token }}{% endif %}"
    )


def asked(template: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> str:
    """Returns the text of messages that are to be answered, as the Jinja template renders it behind end-of-text.

    Raises:
        InputError: a message has no role of ROLES, or no content.
    """
    try:
        turns = [(template[message["role"]], message["content"]) for message in messages]
    except (KeyError, TypeError) as error:
        remedy = f"give messages with a role of {', '.join(ROLES)} and a content"
        raise InputError(f"a message cannot be read ({error})", remedy) from None
    text = "".join(f"{turn['before']}{content}{turn['after']}" for turn, content in turns)
    return f"{text}{template['assistant']['before']}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
