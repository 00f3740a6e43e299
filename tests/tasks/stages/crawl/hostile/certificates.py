"""Certificates, good and bad, of an authority of the tests' own. Not a test module."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = timedelta(days=1)


class Authority:
    """Issues certificates into `folder`; who trusts `file` trusts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Tests")])
        self._certificate = self._signed(self._name, self._key, "", authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(self._certificate))

    def server(self, name: str, *, expired: bool = False, self_signed: bool = False, chain: int = 0) -> ssl.SSLContext:
        """Returns what a server of that name needs; `chain` certificates that have nothing to do with it follow."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signer = (subject, key) if self_signed else None
        leaf = self._signed(subject, key, name, expired=expired, signer=signer)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{name}-{expired}-{self_signed}-{chain}.pem"
        file.write_bytes(private + _pem(leaf) + _pem(self._certificate) * chain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        name: str,
        *,
        expired: bool = False,
        authority: bool = False,
        signer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    ) -> x509.Certificate:
        issuer, issuer_key = signer or (self._name, self._key)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now - _DAY if expired else now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if name:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
