"""Archives that are unpacked, and those that are not."""

import os
import zipfile
from pathlib import Path

import pytest

from repository.core.errors import NoSpace, UnsafeArchive
from repository.files.archive import Limits, extract


def archive(tmp_path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    path = tmp_path / "upload.zip"
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def test_files_and_folders_are_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path, {"model.onnx": b"weights", "assets/": b"", "assets/labels.txt": b"zero"})
    assert extract(path, tmp_path / "out") == ["assets/labels.txt", "model.onnx"]
    assert (tmp_path / "out/model.onnx").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "C:\\evil", "..\\evil", "a//b", "./a", "a\nb", "a" * 300]
)
def test_an_entry_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path, {"model.onnx": b"weights", name: b"evil"})
    with pytest.raises(UnsafeArchive, match="not a plain relative file name"):
        extract(path, tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["upload.zip"]


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "upload.zip"
    with zipfile.ZipFile(path, "w") as file:
        link = zipfile.ZipInfo("model.onnx")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match=r"'model\.onnx' is a link or a device"):
        extract(path, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "upload.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model.onnx", b"good")
        file.writestr("model.onnx", b"evil")
    with pytest.raises(UnsafeArchive, match="twice"):
        extract(path, tmp_path / "out")


def test_a_name_that_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match="for a file and a folder"):
        extract(archive(tmp_path, {"a": b"x", "a/b": b"y"}), tmp_path / "out")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path, {"zeros": bytes(64 << 20)})
    with pytest.raises(UnsafeArchive, match="times its size"):
        extract(path, tmp_path / "out")


def test_an_archive_that_lies_about_its_size_is_stopped(tmp_path: Path) -> None:
    path = archive(tmp_path, {"model.bin": os.urandom(100_000)}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (10).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(UnsafeArchive):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limits", [Limits(max_files=2), Limits(max_bytes=10)])
def test_bounds_on_files_and_bytes_hold(tmp_path: Path, limits: Limits) -> None:
    path = archive(tmp_path, {f"part-{index}": b"12345" for index in range(3)})
    with pytest.raises(UnsafeArchive, match="holds more than"):
        extract(path, tmp_path / "out", limits)


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        extract(archive(tmp_path, {"a": b"x"}), tmp_path / "out", Limits(reserve=1 << 60))


@pytest.mark.parametrize("damage", [b"", b"not an archive", b"PK\x03\x04" + bytes(100)])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "upload.zip"
    path.write_bytes(damage)
    with pytest.raises(UnsafeArchive, match="not a zip archive"):
        extract(path, tmp_path / "out")


def test_a_truncated_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    path = archive(tmp_path, {"model.bin": os.urandom(100_000)})
    content = bytearray(path.read_bytes())
    content[1000:2000] = bytes(1000)
    path.write_bytes(content)
    with pytest.raises(UnsafeArchive):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
