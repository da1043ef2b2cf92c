"""The agent `checksum`: files of the model must have the digests that its configuration gives.

parameters { key: "MD5:1/model.onnx" value: "d726e132f91f16ebee703d96f6f73cb1" }

Paths are relative to the model's folder. Triton's agent supports MD5, which detects a damaged file but not a forged one.
Slipway adds SHA256.
Source: the README of triton-inference-server/checksum_repository_agent.
"""

import hashlib
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

from repository.core.addresses import leads_into
from repository.core.errors import NotFound, RepositoryError, UnsafePath
from repository.core.layout import relative_path

DIGITS = {"MD5": 32, "SHA256": 64}


def problems(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in sorted(parameters.items()):
        algorithm, _, path = key.partition(":")
        digits = DIGITS.get(algorithm.upper())
        if digits is None:
            yield key, f"expected {' or '.join(f'{name}:<file>' for name in DIGITS)}, not '{key}'"
        elif len(value) != digits or not set(value) <= set(string.hexdigits):
            yield key, f"expected the {digits} hexadecimal digits of the file's {algorithm.upper()} digest"
        try:
            relative_path(path)
        except UnsafePath:
            yield key, f"'{path}' does not name a file inside the model's folder"


def approve(model_dir: Path, parameters: Mapping[str, str]) -> None:
    for key, expected in sorted(parameters.items()):
        algorithm, _, path = key.partition(":")
        found = _digest(model_dir, path, algorithm)
        if found != expected.lower():
            raise RepositoryError(
                f"the {algorithm.upper()} digest of '{path}' is {found}, but the configuration expects {expected}"
            )


def _digest(model_dir: Path, path: str, algorithm: str) -> str:
    file = model_dir / relative_path(path)
    if not leads_into(file, model_dir):
        raise UnsafePath(f"'{path}' is a link that leads out of the model's folder")
    if not file.is_file():
        raise NotFound(f"the model has no file '{path}'")
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, algorithm.lower()).hexdigest()
    except OSError as error:
        raise RepositoryError(f"'{path}' cannot be read: {error.strerror}") from error
