"""Addresses of models that are not artifacts of the store, as recipes and commands name them.

    /data/SmolLM2-135M, ~/model, ./model     a Hugging Face model folder
    s3://bucket/model, https://host/model    the URL of one
    hf://owner/name[@revision]               a model of the hub

A recipe may name one wherever it names a checkpoint. Reads nothing, and imports only pydantic with the settings, so
that the dag-processor can check a recipe (`tasks.trainer.interchange.model_source` reads the files).
"""

import re
from typing import NamedTuple

from tasks.core.errors import InputError, without_login

HUB = "hf"
_HUB_MODEL = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@\s]+))?/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubModel(NamedTuple):
    """A model of the hub, and its branch, tag or commit; "" for the default branch."""

    name: str
    revision: str

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, whose files cannot change."""
        return bool(_COMMIT.fullmatch(self.revision))


def is_address(text: str) -> bool:
    """Returns whether a text is the address of a model outside the store, and not the id of an artifact.

    >>> [is_address(text) for text in ("hf://ink/pot", "/data/pot", "demo/checkpoint@1")]
    [True, True, False]
    """
    return "://" in text or text.startswith(("/", ".", "~"))


def hub_model(address: str) -> HubModel:
    """Returns the model of an `hf://` address; raises InputError if it is not one.

    >>> hub_model("hf://ink/pot@v1")
    HubModel(name='ink/pot', revision='v1')
    """
    match = _HUB_MODEL.fullmatch(address)
    if match is None:
        remedy = "write hf://owner/name, or hf://owner/name@revision"
        raise InputError(f"{without_login(address)} is not a model of the hub", remedy)
    return HubModel(match["name"], match["revision"] or "")


def check_address(address: str) -> None:
    """Raises InputError for an address that no model can have, or that would show a password in records."""
    if address.endswith(".gguf"):
        remedy = "convert it with transformers (`from_pretrained(folder, gguf_file=…)`, then `save_pretrained`)"
        raise InputError(f"{address} is a GGUF file, and not a Hugging Face folder", remedy)
    protocol, _, rest = address.partition("://")
    if protocol == HUB and rest:
        hub_model(address)
    elif rest and ("@" in rest.partition("/")[0] or "?" in rest):
        raise InputError(f"{protocol}://…: the URL has credentials or a query", "set them in the environment")


def check_model_name(name: str, artifact: re.Pattern[str], form: str) -> None:
    """Raises ValueError unless a setting names an artifact or the address of a model.

    Args:
        name: the setting; "" for none.
        artifact: the ids that it may be.
        form: what such an id looks like, for the message.
    """
    if not name or artifact.fullmatch(name):
        return
    if not is_address(name):
        raise ValueError(f"{form}; a model from elsewhere is a folder, its URL, or hf://owner/name@revision")
    try:
        check_address(name)
    except InputError as error:
        raise ValueError(str(error)) from None
