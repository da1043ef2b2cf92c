"""Signatures of versions: a file `model.sig` in the folder of a version, over the names and contents of all other files in it.

The format is that of the package model-signing (a Sigstore bundle with an elliptic-curve key), whose own command makes and
verifies the same files. A signature does not cover the configuration, which people change, the model's name and number, and
git's own files, such as .gitignore, which the package leaves out.
Source: OpenSSF Model Signing 1.0, https://model-signing.readthedocs.io.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from repository.core.errors import RepositoryError

SIGNATURE_FILE = "model.sig"
_MISSING = "the package model-signing is not installed: pip install -r requirements/signing.txt"
_OTHER_KEY = "another key has signed it"
_MAKE = "openssl ecparam -name prime256v1 -genkey -noout -out private.pem makes one"
_MAKE_PUBLIC = "openssl ec -in private.pem -pubout -out public.pem makes one of a private key"


class Unsigned(RepositoryError):
    """The version has no signature that one of the keys has made."""


def check_private_key(path: Path) -> None:
    """Raises RepositoryError if versions cannot be signed with this file."""
    signing = _module("signing")
    try:
        signing.Config().use_elliptic_key_signer(private_key=path)
    except OSError as error:
        raise RepositoryError(f"'{path}' cannot be read: {error.strerror}") from error
    except Exception as error:
        raise RepositoryError(f"'{path}' is no private key of an elliptic curve in PEM: {_MAKE}") from error


def check_public_key(path: Path) -> None:
    """Raises RepositoryError if signatures cannot be verified with this file."""
    verifying = _module("verifying")
    try:
        verifying.Config().use_elliptic_key_verifier(public_key=path)
    except OSError as error:
        raise RepositoryError(f"'{path}' cannot be read: {error.strerror}") from error
    except Exception as error:
        raise RepositoryError(f"'{path}' is no public key of an elliptic curve in PEM: {_MAKE_PUBLIC}") from error


def sign(folder: Path, private_key: Path) -> None:
    """Write the signature of a version that has files and no signature yet. Raises RepositoryError for a bad key or a link."""
    if _is_empty(folder) or (folder / SIGNATURE_FILE).exists():
        return
    check_private_key(private_key)
    hashing = _module("hashing").Config().set_ignored_paths(paths=[SIGNATURE_FILE])
    config = _module("signing").Config().set_hashing_config(hashing).use_elliptic_key_signer(private_key=private_key)
    try:
        config.sign(folder, folder / SIGNATURE_FILE)
    except ValueError as error:
        raise RepositoryError(f"the version cannot be signed: {error}") from error


def verify(folder: Path, public_keys: Sequence[Path]) -> None:
    """Raises Unsigned if no key has signed exactly these files. An empty folder, as of an ensemble, needs no signature.

    It reads all files of the folder.
    """
    if _is_empty(folder):
        return
    if not (folder / SIGNATURE_FILE).is_file():
        raise Unsigned(f"version {folder.name} is not signed: it has no {SIGNATURE_FILE}")
    verifying = _module("verifying")
    reasons = []
    for key in public_keys:
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
        try:
            config.verify(folder, folder / SIGNATURE_FILE)
        except (
            Exception
        ) as error:  # the package lets the errors of JSON, of the certificate and of its own parts through
            reasons.append(_said(error))
        else:
            return
    why = next((reason for reason in reasons if reason != _OTHER_KEY), _OTHER_KEY)
    raise Unsigned(f"version {folder.name} is refused, because {why}")


def _said(error: Exception) -> str:
    text = str(error)
    if "Key mismatch" in text:
        return _OTHER_KEY
    if "Signature mismatch" in text or "symlink" in text:
        return "its files are not those that were signed: a file was changed, added or removed afterwards"
    return f"its {SIGNATURE_FILE} is no valid signature"


def _is_empty(folder: Path) -> bool:
    return not folder.is_dir() or not any(folder.iterdir())


def _module(name: str) -> ModuleType:
    try:
        return __import__(f"model_signing.{name}", fromlist=[name])
    except ImportError:
        raise RepositoryError(_MISSING) from None
