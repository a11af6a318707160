"""Creates folders of certificates, as a company's PKI would do."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pymq.transport.tcp.certificates import CA, CERT, CRL, KEY, NODES


class Authority:
    """A certificate authority with its folders below *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ca = trustme.CA()

    def folder(self, name: str, *, is_node: bool = False, host: str = "127.0.0.1") -> Path:
        """Make the folder of a principal."""
        made = self._ca.issue_cert(
            host, common_name=name, organization_name=NODES if is_node else "people"
        )
        folder = self._root / name
        folder.mkdir(parents=True)
        self._ca.cert_pem.write_to_path(folder / CA)
        made.private_key_pem.write_to_path(folder / KEY)
        (folder / CERT).write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        return folder

    def revoke(self, *folders: Path, at: Path) -> None:
        """Write a list of revoked certificates to the folder *at*: the certificates in
        *folders*.
        """
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(now - datetime.timedelta(hours=1))
            .next_update(now + datetime.timedelta(days=1))
        )
        for folder in folders:
            found = x509.load_pem_x509_certificate((folder / CERT).read_bytes())
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(found.serial_number)
                .revocation_date(now - datetime.timedelta(minutes=1))
                .build()
            )
        key = load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        signed = made.sign(key, hashes.SHA256())  # type: ignore[arg-type]  # trustme makes no others
        (at / CRL).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
