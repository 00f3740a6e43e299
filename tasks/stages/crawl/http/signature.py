"""Web Bot Auth: requests signed with the crawler's key, and the directory in which verifiers find the public key.

Sources: RFC 9421 (HTTP Message Signatures) with Ed25519 (3.3.6); draft-ietf-webbotauth-httpsig-protocol-00 (September
2026), which continues draft-meunier-web-bot-auth-architecture and draft-meunier-http-message-signatures-directory.

A signature covers `@authority` and the member of Signature-Agent that names the directory, the components that the
draft requires; every verifier supports them, unlike those that narrow a signature to a path. It is valid for a minute,
and is made when the request is sent. The parameter `keyid` is the JWK thumbprint of the key (RFC 7638, RFC 8037 A.3).

The private key is read from a reference, as credentials in the hosts file are, and exists in memory only.
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tasks.core.config import read_reference
from tasks.core.errors import InputError
from tasks.formats.web.url import authority, host_and_port
from tasks.stages.crawl.config import SignatureConfig, is_loopback

DIRECTORY = "/.well-known/http-message-signatures-directory"
DIRECTORY_TYPE = "application/http-message-signatures-directory+json"
SIGNATURE = "Signature"
"""The header whose value authorizes until it expires."""

VALID_S = 60
"""Seconds for which a signed request is valid; long enough for clocks that differ, short against replays."""
_LABEL = "sig1"
_REMEDY = "make one with: openssl genpkey -algorithm ed25519 -out crawler.pem"
# Thumbprints of keys that are printed in RFC 9421 (B.1.4) and RFC 8037 (A.1): anyone can sign with them.
_PUBLISHED = {"poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U", "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"}


class SigningKey:
    """An Ed25519 key.

    Attributes:
        id: its JWK thumbprint.
        jwk: the public key as a JWK.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        public = _base64url(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        members = {"crv": "Ed25519", "kty": "OKP", "x": public}
        # RFC 7638, 3: the required members in lexical order, without blanks.
        self.id = _base64url(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest())
        self.jwk = {**members, "kid": self.id, "use": "sig"}

    def sign(self, components: Sequence[tuple[str, str]], parameters: str) -> tuple[str, str]:
        """Returns the members of Signature-Input and Signature, without their label.

        Args:
            components: (identifier with its parameters, value) of each covered component.
            parameters: parameters of the signature, beginning with ";".
        """
        covered = f"({' '.join(identifier for identifier, _ in components)}){parameters}"
        return covered, f":{base64.b64encode(self._private.sign(signature_base(components, covered))).decode()}:"


def signature_base(components: Sequence[tuple[str, str]], covered: str) -> bytes:
    """Returns the bytes that are signed (RFC 9421, 2.5).

    >>> print(signature_base([('"@authority"', "h.example")], '("@authority");created=1').decode())
    "@authority": h.example
    "@signature-params": ("@authority");created=1
    """
    lines = [f"{identifier}: {value}" for identifier, value in components]
    return "\n".join([*lines, f'"@signature-params": {covered}']).encode("ascii")


class RequestSigner:
    """Signs requests.

    Args:
        key: the crawler's key.
        directory: https origin of the key directory.
        form: form of Signature-Agent: that of the draft, or the string of its earlier versions.
        now: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        key: SigningKey,
        directory: str,
        form: Literal["dictionary", "string"] = "dictionary",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._agent = f'"{directory}"'
        self._is_string = form == "string"
        self._now = now

    def headers(self, url: str) -> dict[str, str]:
        """Returns the headers that sign a GET request for a canonical URL; none if it is not encrypted.

        Without TLS anyone on the way could use the signature for other requests until it expires.
        """
        if not (url.startswith("https://") or is_loopback(host_and_port(url)[0])):
            return {}
        created = int(self._now())
        member = '"signature-agent"' if self._is_string else f'"signature-agent";key="{_LABEL}"'
        nonce = base64.b64encode(os.urandom(24)).decode()
        parameters = f'{_validity(created, VALID_S, self._key)};nonce="{nonce}";tag="web-bot-auth"'
        covered, signature = self._key.sign([('"@authority"', authority(url)), (member, self._agent)], parameters)
        return {
            "Signature-Agent": self._agent if self._is_string else f"{_LABEL}={self._agent}",
            "Signature-Input": f"{_LABEL}={covered}",
            SIGNATURE: f"{_LABEL}={signature}",
        }


def request_signer(settings: SignatureConfig) -> RequestSigner | None:
    """Returns the signer of a recipe, or None if it does not sign.

    Raises:
        InputError: the key is missing or unusable.
    """
    if not settings.key:
        return None
    return RequestSigner(read_key(settings.key), settings.directory, settings.agent_form)


def read_key(reference: str) -> SigningKey:
    """Reads a private key, as PEM (PKCS #8) or JWK, from "env:NAME" or "file:/path".

    Raises:
        InputError: there is no usable Ed25519 key; the message does not contain any of it.
    """
    place = f"the key of [crawl.signature] at {reference}"
    try:
        text = read_reference(reference).strip()
    except (OSError, KeyError, UnicodeDecodeError):
        raise InputError(f"{place} is not found", f"set it where the crawl runs; {_REMEDY}") from None
    try:
        private = _jwk_key(text) if text.startswith("{") else _pem_key(text)
    except ValueError as error:
        raise InputError(f"{place} {error}", _REMEDY) from None
    key = SigningKey(private)
    if key.id in _PUBLISHED:
        raise InputError(f"{place} is a test key from an RFC, with which anyone can sign", _REMEDY)
    return key


def _pem_key(text: str) -> Ed25519PrivateKey:
    if "PUBLIC KEY" in text:
        raise ValueError("is a public key; the private one is needed")
    if "ENCRYPTED" in text:
        raise ValueError("is encrypted; store it without a passphrase, readable by the crawl only")
    try:
        key = load_pem_private_key(text.encode(), None)
    except Exception:  # the library has many, and their texts may quote the input
        raise ValueError("is neither PEM (PKCS #8) nor a JWK") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"is not Ed25519 but {type(key).__name__.lstrip('_').removesuffix('PrivateKey')}")
    return key


def _jwk_key(text: str) -> Ed25519PrivateKey:
    try:
        jwk = json.loads(text)
        members = {name: str(jwk.get(name, "")) for name in ("kty", "crv", "d", "x")}
    except (ValueError, RecursionError):
        raise ValueError("is no valid JSON") from None
    if (members["kty"], members["crv"]) != ("OKP", "Ed25519"):
        raise ValueError("is a JWK of another kind than OKP with Ed25519")
    if not members["d"]:
        raise ValueError("is a public JWK; the private one with its member d is needed")
    try:
        padding = "=" * (-len(members["d"]) % 4)
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(members["d"] + padding, b"-_", validate=True))
    except ValueError:
        raise ValueError("is a JWK whose member d is not 32 bytes in base64url") from None
    if members["x"] not in ("", SigningKey(key).jwk["x"]):
        raise ValueError("is a JWK whose members d and x do not belong together")
    return key


def key_directory(keys: Iterable[SigningKey]) -> bytes:
    """Returns the directory document: a JWK set of the public keys, in the order given."""
    return json.dumps({"keys": [key.jwk for key in keys]}, indent=1).encode() + b"\n"


def directory_headers(
    body: bytes, keys: Sequence[SigningKey], origin: str, created: int, valid_s: int
) -> dict[str, str]:
    """Returns the headers with which a directory must be served, with a signature of each key.

    The signatures prove that whoever serves the directory has the keys (appendix "Possession Proof" of the draft).

    Args:
        body: the document.
        keys: its keys.
        origin: https origin that serves it.
        created: time of the signatures in seconds since 1970.
        valid_s: seconds for which they are valid.
    """
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
    components = [('"@authority";req', authority(f"{origin}/")), ('"content-digest"', digest)]
    tag = ';tag="http-message-signatures-directory"'
    signed = [key.sign(components, _validity(created, valid_s, key) + tag) for key in keys]
    labels = [f"sig{number}" for number in range(1, len(signed) + 1)]
    return {
        "Content-Type": DIRECTORY_TYPE,
        "Cache-Control": "max-age=86400",
        "Content-Digest": digest,
        "Signature-Input": ", ".join(f"{label}={one[0]}" for label, one in zip(labels, signed, strict=True)),
        SIGNATURE: ", ".join(f"{label}={one[1]}" for label, one in zip(labels, signed, strict=True)),
    }


def write_directory(settings: SignatureConfig, out: str, also: Iterable[str], valid_s: int) -> str:
    """Writes the directory document of a recipe, and its headers, into a folder; returns what to do with them.

    Args:
        settings: the recipe's settings, with a key.
        out: the folder; files of an earlier call are replaced.
        also: references to further keys, such as the next one.
        valid_s: seconds for which the headers are valid.

    Raises:
        InputError: a key is unusable, or the folder cannot be written.
    """
    keys = [read_key(reference) for reference in dict.fromkeys((settings.key, *also))]
    body = key_directory(keys)
    headers = directory_headers(body, keys, settings.directory, int(time.time()), valid_s)
    folder = Path(out)
    document, head = folder / DIRECTORY.lstrip("/"), folder / "headers.txt"
    try:
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_bytes(body)
        head.write_text("".join(f"{name}: {value}\n" for name, value in headers.items()))
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}", "name another folder") from None
    return (
        f"Serve {document} at {settings.directory}{DIRECTORY}\n"
        f"with the headers in {head}, which are valid for {valid_s / 86400:g} days.\n"
        f"Keys: {', '.join(key.id for key in keys)}"
    )


def _validity(created: int, valid_s: int, key: SigningKey) -> str:
    return f';created={created};expires={created + valid_s};keyid="{key.id}"'


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
