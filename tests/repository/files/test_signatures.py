"""A signature stands for exactly the files of a version, and for one of the keys."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repository.core.errors import RepositoryError
from repository.core.layout import OVERLAY_FILE
from repository.files.signatures import SIGNATURE_FILE, Unsigned, check_key, sign, verify
from repository.files.storage import hash_tree
from tests.support.signing_keys import key_pair


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def version(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    """The folder of a signed version."""
    folder = tmp_path / "m" / "1"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    (folder / "weights" / "0").write_bytes(b"numbers")
    (folder / ".gitignore").write_text("*.tmp")
    manifest = sign(folder, keys[0], hash_tree(folder))
    assert manifest == hash_tree(folder)
    return folder


def test_what_is_signed_is_accepted_wherever_it_lies(version: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    verify(version, [keys[1]])
    verify(Path(shutil.copytree(version, tmp_path / "other" / "7")), [keys[1]])


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file was changed": lambda folder: (folder / "weights" / "0").write_bytes(b"others"),
    "a file was added": lambda folder: (folder / "weights" / "1").write_bytes(b""),
    "a file was removed": lambda folder: (folder / "model.onnx").unlink(),
    "a file became a link": lambda folder: (folder / "link").symlink_to("model.onnx"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused(version: Path, keys: tuple[Path, Path], change: str) -> None:
    CHANGES[change](version)
    with pytest.raises(Unsigned, match="its files are not those that were signed"):
        verify(version, [keys[1]])


@pytest.mark.parametrize("content", ["", "{}", "[]", "no JSON", '{"verificationMaterial": 3}'])
def test_what_is_no_signature_is_refused(version: Path, keys: tuple[Path, Path], content: str) -> None:
    (version / SIGNATURE_FILE).write_text(content)
    with pytest.raises(Unsigned, match=r"its model\.sig is no valid signature"):
        verify(version, [keys[1]])


def test_one_of_several_keys_is_enough_and_another_is_refused(
    version: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    _, other = key_pair(tmp_path / "other")
    verify(version, [other, keys[1]])
    with pytest.raises(Unsigned, match="another key has signed it"):
        verify(version, [other])
    (version / "model.onnx").write_bytes(b"changed")
    with pytest.raises(Unsigned, match="its files are not those"):
        verify(version, [keys[1], other])


def test_a_version_without_files_needs_no_signature_and_one_with_files_does(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    sign(tmp_path, keys[0], hash_tree(tmp_path))
    assert list(tmp_path.iterdir()) == []
    verify(tmp_path, [keys[1]])
    (tmp_path / "model.py").touch()
    with pytest.raises(Unsigned, match=r"is not signed: it has no model\.sig"):
        verify(tmp_path, [keys[1]])


def test_a_signature_that_came_with_the_files_is_kept(version: Path, tmp_path: Path) -> None:
    before = (version / SIGNATURE_FILE).read_bytes()
    sign(version, key_pair(tmp_path / "other")[0], hash_tree(version))
    assert (version / SIGNATURE_FILE).read_bytes() == before


def test_a_configuration_that_was_added_is_not_signed_and_one_that_was_signed_is(
    version: Path, keys: tuple[Path, Path]
) -> None:
    overlay = version / OVERLAY_FILE
    overlay.write_text("max_batch_size: 8")
    verify(version, [keys[1]])
    (version / SIGNATURE_FILE).unlink()
    sign(version, keys[0], hash_tree(version))
    verify(version, [keys[1]])
    overlay.write_text("max_batch_size: 9")
    with pytest.raises(Unsigned, match="its files are not those that were signed"):
        verify(version, [keys[1]])


def test_the_package_verifies_what_was_signed(version: Path, keys: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", version, "--public_key", keys[1]]
    done = subprocess.run(
        [*command, "--signature", version / SIGNATURE_FILE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_key_is_named_with_what_makes_one(keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    check_key(private, private=True)
    check_key(public)
    for private_wanted, wrong, says in (
        (True, public, "is no private key of an elliptic curve in PEM: openssl ecparam"),
        (False, private, "is no public key of an elliptic curve in PEM: openssl ec"),
        (True, tmp_path / "none", "cannot be read: No such file"),
        (False, tmp_path / "none", "cannot be read: No such file"),
    ):
        with pytest.raises(RepositoryError, match=says):
            check_key(wrong, private=private_wanted)
