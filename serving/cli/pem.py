"""Loads a certificate and its key from PEM files. If they cannot be used, the error is one sentence for the user.

load_chain(context, certificate, key)       loads both files; the text of UnusablePem says what to do
expiry(certificate)                         returns a sentence if the certificate has expired, or is not valid yet
"""

import datetime
import re
import ssl
from pathlib import Path

MAX_FILE = 1 << 20  # bytes
_PAIR = "openssl req -x509 -nodes -days 365 -newkey rsa:2048 -keyout mykey.key -out mycert.pem makes a pair for a trial"
_MAKE_PEM = (
    "make PEM files of it: openssl pkcs12 -in keystore.p12 -nodes -nocerts -out key.pem; openssl pkcs12 -in keystore.p12 "
    "-nokeys -out certificate.pem"
)
# Validity ::= SEQUENCE { notBefore Time, notAfter Time }; a Time is UTCTime or GeneralizedTime. Source: RFC 5280, 4.1.2.5.
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22][\x17\x18][\x0d\x0f](\d{12,14})Z[\x17\x18][\x0d\x0f](\d{12,14})Z")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class UnusablePem(Exception):
    """The files cannot be used. The text is one sentence."""


class _Encrypted(Exception):
    """The key needs a password."""


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key into a context. Raises UnusablePem if they cannot be used."""
    held, held_key = _read(certificate), _read(key)
    if b"-----BEGIN CERTIFICATE-----" not in held:
        raise UnusablePem(f"'{certificate}' has no certificate in PEM: {_what(held)}")
    if b"PRIVATE KEY-----" not in held_key:
        raise UnusablePem(f"'{key}' has no private key in PEM: {_what(held_key)}")
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except _Encrypted:
        raise UnusablePem(
            f"the private key in '{key}' is encrypted, which is not supported: openssl pkey -in {key} -out plain.pem "
            "decrypts it"
        ) from None
    except ssl.SSLError as error:
        raise UnusablePem(_why(error, certificate, key)) from None


def expiry(certificate: Path) -> str:
    """Return a sentence if a certificate has expired or is not valid yet, else ""."""
    match = _CERTIFICATE.search(_read(certificate))
    try:
        found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(match[0].decode("ascii"))) if match else None
    except ValueError:
        found = None
    if found is None:
        return ""
    begins, ends = map(_moment, found.groups())
    now = datetime.datetime.now(datetime.UTC)
    if now > ends:
        return f"the certificate in '{certificate}' has expired on {ends:%Y-%m-%d}: clients that check it refuse it"
    if now < begins:
        return (
            f"the certificate in '{certificate}' is not valid before {begins:%Y-%m-%d}: clients that check it refuse it"
        )
    return ""


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE)
    except OSError as error:
        raise UnusablePem(f"'{path}' cannot be read: {error.strerror}") from None


def _refuse_password() -> str:
    raise _Encrypted


def _what(content: bytes) -> str:
    """Return a hint at what a file contains instead of the expected PEM."""
    if content[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        return f"it is a Java keystore; keytool -importkeystore -deststoretype PKCS12 first, then {_MAKE_PEM}"
    if content[:2] == b"\x30\x82":
        return f"it is DER or a PKCS12 keystore; {_MAKE_PEM}"
    if b"PRIVATE KEY-----" in content:
        return "it has a private key; are the two files the wrong way round?"
    if b"-----BEGIN CERTIFICATE-----" in content:
        return "it has a certificate; are the two files the wrong way round?"
    return _PAIR


def _why(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    reason = error.reason or ""
    if reason.endswith("KEY_TOO_SMALL"):
        return f"the key of '{certificate}' is too small to be safe; make one of 2048 bits or more: {_PAIR}"
    if reason.endswith("MD_TOO_WEAK"):
        return f"'{certificate}' is signed with a digest that is no longer safe; create a new one with SHA-256: {_PAIR}"
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the private key in '{key}' does not match the certificate in '{certificate}'"
    return f"'{certificate}' or '{key}' is damaged ({(reason or 'unknown').replace('_', ' ').lower()})"


def _moment(digits: bytes) -> datetime.datetime:
    """Parse a time of a certificate. Two-digit years from 50 on mean 19xx, the others 20xx (RFC 5280)."""
    text = digits.decode()
    if len(text) == 12:
        text = ("19" if text >= "50" else "20") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=datetime.UTC)
