"""Chat templates of Hugging Face: the template of a fine-tuning as Jinja, for `apply_chat_template`.

What it renders, tokenised as a whole, are the tokens that were trained on: end-of-text, the turns, end-of-text; or, to
be answered, the turns and the beginning of a response.
"""

import json
from collections.abc import Mapping
from typing import Any

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


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
