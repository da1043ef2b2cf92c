"""What is said of certificates and keys that cannot be used."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from serving.cli.pem import UnusablePem, expiry, load_chain
from tests.support.certificates import Authority, Files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys of many kinds: name.pem and name.key."""
    folder = tmp_path_factory.mktemp("pem")
    authority = Authority(folder)
    good = authority.sign("good")
    authority.sign("other")
    _sign(folder, "small", bits=1024)
    _sign(folder, "expired", days=-1)
    key = serialization.load_pem_private_key(good.key.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"secret")
    (folder / "encrypted.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)
    )
    (folder / "der.pem").write_bytes(ssl.PEM_cert_to_DER_cert(good.cert.read_text()))
    (folder / "java.pem").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    (folder / "empty.key").touch()
    (folder / "damaged.pem").write_text(good.cert.read_text().replace("MII", "???", 1))
    return folder


def _sign(folder: Path, name: str, bits: int = 2048, days: int = 1) -> Files:
    """Sign a certificate with its own key, for some days from ten days ago until so many from now."""
    key = rsa.generate_private_key(65537, bits)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(days=10))
    signed = builder.not_valid_after(now + datetime.timedelta(days=days)).sign(key, hashes.SHA256())
    files = Files(folder / f"{name}.pem", folder / f"{name}.key")
    files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return files


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("small.pem", "small.key", "too small to be safe; make one of 2048 bits"),
        ("good.pem", "other.key", r"does not match the certificate in '.*good\.pem'"),
        ("good.pem", "encrypted.key", "is encrypted, which is not supported"),
        ("java.pem", "good.key", r"'.*java\.pem' has no certificate in PEM: it is a Java keystore"),
        ("der.pem", "good.key", "it is DER or a PKCS12 keystore; make PEM files"),
        ("good.key", "good.pem", "are the two files the wrong way round"),
        ("good.pem", "empty.key", "has no private key in PEM"),
        ("damaged.pem", "good.key", "is damaged"),
        ("none.pem", "good.key", "cannot be read: No such file or directory"),
    ],
)
def test_a_pair_that_cannot_be_used_is_said(folder: Path, certificate: str, key: str, said: str) -> None:
    with pytest.raises(UnusablePem, match=said):
        load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder / certificate, folder / key)


def test_a_certificate_past_its_days_is_served_and_said(folder: Path) -> None:
    load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder / "expired.pem", folder / "expired.key")
    assert "has expired on" in expiry(folder / "expired.pem")
    load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder / "good.pem", folder / "good.key")
    assert expiry(folder / "good.pem") == ""
