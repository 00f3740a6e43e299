"""Web Bot Auth: signatures of real requests, the key directory, errors of keys, and that the key stays secret.

Signatures are verified by a reader of RFC 9421 of its own, with the public key of the directory.
"""

import base64
import gzip
import hashlib
import json
import re
import time
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption
from cryptography.hazmat.primitives.serialization import PrivateFormat as Private
from cryptography.hazmat.primitives.serialization import PublicFormat as Public
from pydantic import ValidationError

from tasks.core.errors import InputError
from tasks.run.shell import main
from tasks.stages.crawl.config import CrawlConfig, SignatureConfig
from tasks.stages.crawl.http.signature import DIRECTORY, VALID_S, RequestSigner, SigningKey, read_key
from tests.tasks.stages.crawl.site import Site
from tests.tasks.stages.crawl.test_tdm_file import config_for

AGENT = "https://crawler.example"


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, Private.PKCS8, encryption or NoEncryption()).decode()


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unpadded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.fixture
def private(tmp_path):
    """A key in a file; has its `reference`."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_text(pem(key))
    return key


@pytest.fixture
def settings(private, tmp_path):
    return SignatureConfig(key=f"file:{tmp_path}/key.pem", directory=AGENT)


def verified(headers, values, public):
    """Checks the one signature in headers; returns its covered components and parameters.

    `values` are those of components that are no plain headers, by identifier.
    """
    label, covered = headers["Signature-Input"].split("=", 1)
    signed_label, signature = headers["Signature"].split("=", 1)
    assert label == signed_label
    components = re.findall(r'"[^" ]+"(?:;[a-z]+(?:="[^"]*")?)*', covered[: covered.index(")")])
    lines = [f"{one}: {values[one]}" for one in components] + [f'"@signature-params": {covered}']
    public.verify(base64.b64decode(signature[1:-1]), "\n".join(lines).encode())
    parameters = dict(re.findall(r';([a-z]+)=("[^"]*"|\d+)', covered[covered.index(")") :]))
    return components, {name: value.strip('"') for name, value in parameters.items()}


def test_the_signature_of_rfc_9421_b_2_6_and_thumbprints_of_rfcs():
    def key(private):
        return SigningKey(Ed25519PrivateKey.from_private_bytes(unpadded(private)))

    published = key("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU")
    message = {
        '"date"': "Tue, 20 Apr 2021 02:07:55 GMT",
        '"@method"': "POST",
        '"@path"': "/foo",
        '"@authority"': "example.com",
        '"content-type"': "application/json",
        '"content-length"': "18",
    }
    _, signature = published.sign(list(message.items()), ';created=1618884473;keyid="test-key-ed25519"')
    assert signature == ":wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:"
    assert published.jwk["x"] == "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"
    # RFC 8037, A.3.
    assert key("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").id == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_every_request_of_a_crawl_is_signed_for_its_authority(crawl, private, settings):
    pages = {
        "/": "<a href=/a>a</a><a href=/moved>m</a><a href=/cold>c</a>",
        "/a": '<link rel="license" type="application/rsl+xml" href="/l.xml">a',
        "/l.xml": '<rsl><content url="/"><license/></content></rsl>',
    }
    with Site({"/there": "there"}) as other, Site(pages) as site:
        elsewhere = other.url("/there", "localhost")
        pages["/moved"] = lambda _: web.Response(status=302, headers={"Location": elsewhere})
        before = int(time.time())
        hosts = (f"127.0.0.1:{site.port}", f"localhost:{other.port}")
        crawl(config_for(site, signature=settings, include_hosts=hosts, concurrency=1))
        requests = [(headers["Host"], path, headers) for one in (site, other) for path, headers in one.headers]
        assert {"/robots.txt", "/.well-known/tdmrep.json", "/", "/a", "/moved", "/l.xml"} <= set(site.paths())
        assert {"/robots.txt", "/there"} <= set(other.paths())
    nonces = set()
    for host, path, headers in requests:
        agent = headers["Signature-Agent"]
        assert agent == f'sig1="{AGENT}"', path
        values = {'"@authority"': host, '"signature-agent";key="sig1"': f'"{AGENT}"'}
        components, parameters = verified(headers, values, private.public_key())
        assert components == list(values)
        assert (parameters["tag"], parameters["keyid"]) == ("web-bot-auth", SigningKey(private).id)
        assert before <= int(parameters["created"]) <= time.time()
        assert int(parameters["expires"]) == int(parameters["created"]) + VALID_S
        nonces.add(parameters["nonce"])
    assert len(nonces) == len(requests)


def test_the_key_is_in_no_file_record_or_log_and_the_signature_in_no_archive(
    crawl, private, settings, tmp_path, caplog
):
    caplog.set_level("DEBUG")
    with Site({"/": "page"}) as site:
        cycle = crawl(config_for(site, signature=settings))
        sent = [headers["Signature"] for _, headers in site.headers]
    seed = private.private_bytes(Encoding.Raw, Private.Raw, NoEncryption())
    secrets = [seed, base64url(seed).encode(), base64.b64encode(seed), pem(private).splitlines()[1].encode()]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key.pem"]
    contents = [path.read_bytes() for path in files]
    contents += [gzip.decompress(data) for data in contents if data.startswith(b"\x1f\x8b")]
    contents.append(caplog.text.encode())
    for secret in (*secrets, *(one.split(":")[1].encode() for one in sent)):
        assert not [data[:100] for data in contents if secret in data]
    (segment,) = cycle.segments
    archive = b"".join(gzip.decompress(segment.read(path)) for path in segment.files("warc/"))
    assert b"\r\nSignature: [redacted]\r\n" in archive
    # What remains says which key signed, and when.
    assert f'\r\nSignature-Agent: sig1="{AGENT}"\r\n'.encode() in archive
    assert f'keyid="{SigningKey(private).id}"'.encode() in archive
    assert settings.key in segment.record.model_dump_json()  # only the reference


@pytest.mark.parametrize(
    ("url", "signed"),
    [
        ("https://h.example/a?b", "h.example"),
        ("https://h.example:8443/", "h.example:8443"),
        ("http://h.example/", ""),  # without TLS anyone could reuse the signature
        ("http://127.0.0.1:80/", "127.0.0.1:80"),
    ],
)
@pytest.mark.parametrize("form", ["dictionary", "string"])
def test_a_request_over_tls_is_signed_in_either_form(private, url, signed, form):
    headers = RequestSigner(SigningKey(private), AGENT, form, lambda: 1_700_000_000.9).headers(url)
    if not signed:
        assert headers == {}
        return
    member = '"signature-agent"' if form == "string" else '"signature-agent";key="sig1"'
    components, parameters = verified(headers, {'"@authority"': signed, member: f'"{AGENT}"'}, private.public_key())
    assert components == ['"@authority"', member]
    assert headers["Signature-Agent"] == (f'"{AGENT}"' if form == "string" else f'sig1="{AGENT}"')
    assert (parameters["created"], parameters["expires"]) == ("1700000000", "1700000060")


def test_a_key_is_read_as_pem_or_jwk_from_environment_or_file(private, tmp_path, monkeypatch):
    seed = private.private_bytes(Encoding.Raw, Private.Raw, NoEncryption())
    monkeypatch.setenv("CRAWL_KEY", json.dumps({"kty": "OKP", "crv": "Ed25519", "d": base64url(seed)}))
    assert read_key("env:CRAWL_KEY").id == read_key(f"file:{tmp_path}/key.pem").id == SigningKey(private).id


SEED = b"\x07" * 32
JWK = {"kty": "OKP", "crv": "Ed25519", "d": base64url(SEED)}
PUBLIC = Ed25519PrivateKey.from_private_bytes(SEED).public_key()
RFC_KEY = Ed25519PrivateKey.from_private_bytes(unpadded("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU"))
OWN = Ed25519PrivateKey.from_private_bytes(SEED)
WRONG = {
    "empty": ("", "is neither PEM"),
    "text": ("hunter2-is-secret", "is neither PEM"),
    "cut": (pem(OWN)[:60], "is neither PEM"),
    "public": (PUBLIC.public_bytes(Encoding.PEM, Public.SubjectPublicKeyInfo).decode(), "is a public key"),
    "encrypted": (pem(OWN, BestAvailableEncryption(b"x")), "is encrypted"),
    "rsa": (pem(rsa.generate_private_key(65537, 1024)), "is not Ed25519 but RSA"),
    "ec": (pem(ec.generate_private_key(ec.SECP256R1())), "is not Ed25519 but EC"),
    "public jwk": (json.dumps({"kty": "OKP", "crv": "Ed25519", "x": "AA"}), "is a public JWK"),
    "other jwk": (json.dumps({**JWK, "crv": "X25519"}), "is a JWK of another kind"),
    "short jwk": (json.dumps({**JWK, "d": base64url(SEED[:31])}), "is a JWK whose member d"),
    "torn jwk": (json.dumps({**JWK, "x": "AA"}), "is a JWK whose members d and x"),
    "no json": ('{"kty"', "is no valid JSON"),
    "of an RFC": (pem(RFC_KEY), "is a test key from an RFC"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_key_is_an_error_that_does_not_show_it(name, tmp_path):
    text, message = WRONG[name]
    (tmp_path / "key").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_key(f"file:{tmp_path}/key")
    shown = str(raised.value)
    assert f"file:{tmp_path}/key" in shown
    assert "openssl genpkey -algorithm ed25519" in shown
    assert not any(line in shown for line in text.splitlines() if len(line) > 8)


def test_a_missing_key_ends_the_fetch_before_its_first_request(crawl, tmp_path):
    with Site({"/": "page"}) as site, pytest.raises(InputError, match="is not found"):
        crawl(config_for(site, signature=SignatureConfig(key=f"file:{tmp_path}/none", directory=AGENT)))
    assert site.paths() == []
    with pytest.raises(InputError, match="is not found"):
        read_key("env:NO_SUCH_VARIABLE_OF_A_KEY")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"key": "MC4CAQAwBQYDK2VwBCIEIJ", "directory": AGENT}, "must not be in a recipe"),
        ({"key": "env:KEY"}, "both key and directory"),
        ({"directory": AGENT}, "both key and directory"),
        ({"key": "env:KEY", "directory": "http://h.example"}, "is not an origin"),
        ({"key": "env:KEY", "directory": "https://h.example/keys"}, "is not an origin"),
    ],
)
def test_settings_are_checked(values, message):
    with pytest.raises(ValidationError, match=message):
        SignatureConfig(**values)


def test_a_recipe_that_does_not_sign_keeps_its_fingerprint():
    assert "signature" not in CrawlConfig().model_dump(mode="json")


def test_the_directory_has_the_public_keys_and_its_headers_prove_their_possession(tmp_path, private, capsys):
    (tmp_path / "next.pem").write_text(pem(OWN))
    (tmp_path / "r.toml").write_text(
        f'name = "r"\n[crawl]\nseeds = ["http://127.0.0.1/"]\nallow_loopback = true\ndelay_s = 0.0\n'
        f'[crawl.signature]\nkey = "file:{tmp_path}/key.pem"\ndirectory = "{AGENT}"\n'
        f'[canary]\nseeds = [0, 1]\n[place]\nstore = "{tmp_path}/store"\n'
    )
    command = ["key-directory", "--recipe", f"{tmp_path}/r.toml", f"{tmp_path}/out", "--days", "7"]
    for _ in range(2):  # renewed in place
        assert not main([*command, "--also", f"file:{tmp_path}/next.pem"])
    shown = capsys.readouterr().out
    body = Path(f"{tmp_path}/out{DIRECTORY}").read_bytes()
    keys = json.loads(body)["keys"]
    assert [key["kid"] for key in keys] == [SigningKey(private).id, SigningKey(OWN).id]
    assert {name for key in keys for name in key} == {"kty", "crv", "kid", "x", "use"}
    headers = dict(line.split(": ", 1) for line in Path(f"{tmp_path}/out/headers.txt").read_text().splitlines())
    assert headers["Content-Type"] == "application/http-message-signatures-directory+json"
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
    assert headers["Content-Digest"] == digest
    inputs, signatures = headers["Signature-Input"].split(", "), headers["Signature"].split(", ")
    for key, one, signature in zip(keys, inputs, signatures, strict=True):
        public = Ed25519PublicKey.from_public_bytes(unpadded(key["x"]))
        values = {'"@authority";req': "crawler.example", '"content-digest"': digest}
        components, parameters = verified({"Signature-Input": one, "Signature": signature}, values, public)
        assert components == list(values)
        assert (parameters["tag"], parameters["keyid"]) == ("http-message-signatures-directory", key["kid"])
        assert int(parameters["expires"]) - int(parameters["created"]) == 7 * 86400
    assert f"{AGENT}{DIRECTORY}" in shown
    seed = private.private_bytes(Encoding.Raw, Private.Raw, NoEncryption())
    assert base64url(seed) not in shown + body.decode() + str(headers)
