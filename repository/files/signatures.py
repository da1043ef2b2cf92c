"""Signatures of versions: a file `model.sig` in the folder of a version, over the names and contents of all other files in it.

The format is that of the package model-signing (a Sigstore bundle with an elliptic-curve key), whose own command makes and
verifies the same files. A signature does not cover the configuration, which people change, the model's name and number, and
git's own files, such as .gitignore, which the package leaves out.
Source: OpenSSF Model Signing 1.0, https://model-signing.readthedocs.io.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from repository.core.errors import RepositoryError
from repository.core.layout import OVERLAY_FILE
from repository.files.storage import Manifest, hash_file

SIGNATURE_FILE = "model.sig"
_MISSING = "the package model-signing is not installed: pip install -r requirements/signing.txt"
_OTHER_KEY = "another key has signed it"
_MAKE = {
    "private_key": "openssl ecparam -name prime256v1 -genkey -noout -out private.pem makes one",
    "public_key": "openssl ec -in private.pem -pubout -out public.pem makes one of a private key",
}
_GITS = (".git", ".gitattributes", ".github", ".gitignore")  # which the package leaves out


class Unsigned(RepositoryError):
    """The version has no signature that one of the keys has made."""


def check_key(path: Path, *, private: bool = False) -> None:
    """Raises RepositoryError if signatures cannot be made (private) or verified (public) with this file."""
    if private:
        _signer(path)
    else:
        _with_key(_module("verifying").Config().use_elliptic_key_verifier, "public_key", path)


def sign(folder: Path, private_key: Path, manifest: Manifest) -> Manifest:
    """Write the signature of a version that has files and no signature yet. Return the manifest with the signature's file.

    manifest: the hashes of the files, which are not read again. Raises RepositoryError for a bad key.
    """
    if not manifest.files or SIGNATURE_FILE in manifest.files:
        return manifest
    package = _module("manifest")
    kind = package.SerializationType.from_args(
        {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [*_GITS, SIGNATURE_FILE]}
    )
    rows = [
        kind.new_item(name, package.hashing.Digest("sha256", bytes.fromhex(entry.sha256)))
        for name, entry in manifest.files.items()
        if name.partition("/")[0] not in _GITS
    ]
    signed = package.Manifest(folder.name, rows, kind)
    _signer(private_key).set_hashing_config(_Hashed(signed)).sign(folder, folder / SIGNATURE_FILE)
    return Manifest({**manifest.files, SIGNATURE_FILE: hash_file(folder / SIGNATURE_FILE)})


class _Hashed:
    """Stands for the package's hashing configuration, with the hashes that are known already."""

    def __init__(self, manifest: object) -> None:
        self._manifest = manifest

    def hash(self, folder: Path) -> object:
        return self._manifest


def verify(folder: Path, public_keys: Sequence[Path]) -> None:
    """Raises Unsigned if no key has signed exactly these files. An empty folder, as of an ensemble, needs no signature.

    It reads all files of the folder, twice if a slipway.pbtxt is in it that was signed. One that was added afterwards, such as
    that of a registered archive, is a part of the configuration, which no signature covers.
    """
    if _is_empty(folder):
        return
    if not (folder / SIGNATURE_FILE).is_file():
        raise Unsigned(f"version {folder.name} is not signed: it has no {SIGNATURE_FILE}")
    reasons = []
    ways = [[OVERLAY_FILE], []] if (folder / OVERLAY_FILE).is_file() else [[]]
    for key, ignored in itertools.product(public_keys, ways):
        config = _module("verifying").Config().use_elliptic_key_verifier(public_key=key)
        if ignored:
            config.set_hashing_config(_module("hashing").Config().set_ignored_paths(paths=ignored))
        try:
            config.verify(folder, folder / SIGNATURE_FILE)
        except Exception as error:  # the package lets those of JSON, of the certificate and of its own parts through
            reasons.append(_said(error))
        else:
            return
    why = next((reason for reason in reasons if reason != _OTHER_KEY), _OTHER_KEY)
    raise Unsigned(f"version {folder.name} is refused, because {why}")


def _signer(path: Path) -> Any:
    return _with_key(_module("signing").Config().use_elliptic_key_signer, "private_key", path)


def _with_key(use: Callable[..., Any], kind: str, path: Path) -> Any:
    """Return the package's configuration with a key. Raises RepositoryError if the file is no such key."""
    try:
        return use(**{kind: path})
    except OSError as error:
        raise RepositoryError(f"'{path}' cannot be read: {error.strerror}") from error
    except Exception as error:
        what = kind.replace("_", " ")
        raise RepositoryError(f"'{path}' is no {what} of an elliptic curve in PEM: {_MAKE[kind]}") from error


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
