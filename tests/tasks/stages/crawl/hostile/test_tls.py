"""Group 10: invalid certificates, and endless handshakes."""

import socket
from contextlib import closing

from tests.tasks.stages.crawl.hostile.web import CertificateAuthority, page


def test_only_a_certificate_for_the_host_name_is_accepted(web, crawl, tmp_path):
    authority = CertificateAuthority(tmp_path)
    contexts = {
        "good": authority.server("good.localhost"),
        "expired": authority.server("expired.localhost", expired=True),
        "self-signed": authority.server("self.localhost", self_signed=True),
        "wrong name": authority.server("other.localhost"),
        "huge chain": authority.server("chain.localhost", chain=1000),
        "long chain": authority.server("long.localhost", chain=20),
    }
    names = {"good": "good", "expired": "expired", "self-signed": "self", "wrong name": "wrong", "huge chain": "chain"}
    hosts = {
        kind: web.host(page(b"x"), tls=context, name=f"{names.get(kind, 'long')}.localhost")
        for kind, context in contexts.items()
    }
    plain = web.host(page(b"x"), greeting=page(b"", status="400 Bad Request"))
    plain.scheme = "https"
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        still = web.host(page(b"x"))  # only for its address
        still.scheme, still.port = "https", silent.getsockname()[1]
        result = crawl(*hosts.values(), plain, still, environment={"SSL_CERT_FILE": str(authority.file)})
        assert result.reasons(hosts) == {
            "good": "",
            "expired": "tls",
            "self-signed": "tls",
            "wrong name": "tls",
            "huge chain": "tls",
            "long chain": "",
        }
        assert result.reason(plain) == "tls"
        assert result.reason(still) == "robots_unavailable"
    for kind in ("expired", "self-signed", "wrong name", "huge chain"):
        assert hosts[kind].requests == [], "a request was sent over a connection that proves nothing"


def test_an_untrusted_certificate_authority_is_refused(web, crawl, tmp_path):
    host = web.host(page(b"x"), tls=CertificateAuthority(tmp_path).server("good.localhost"), name="good.localhost")
    assert crawl(host).reason(host) == "tls"
