"""What is read of allowed folders: files, Hugging Face caches and Triton repositories; never what a link leads out to."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, Invalid, NotFound
from dashboard.uploads.sources import folder as folders
from dashboard.uploads.sources.base import Source, SourceFile
from dashboard.uploads.sources.folder import Folder
from dashboard.uploads.sources.hugging_face import HuggingFaceCache
from dashboard.uploads.sources.table import SOURCES, allowed_sources, source_of
from dashboard.uploads.sources.triton import TritonRepository

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """An allowed folder, beside one that is not allowed."""
    path = tmp_path / "allowed"
    path.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.onnx").write_bytes(b"secret")
    settings.SOURCE_FOLDERS = [path]
    return path


def read(source: Source, place: dict[str, str], file: SourceFile, offset: int = 0) -> bytes:
    return b"".join(source.read(place, file, offset))


def contents(source: Source, **asked: str) -> dict[str, bytes]:
    place = source.located(asked)
    return {file.name: read(source, place, file) for file in source.files(place)}


# -- folders -----------------------------------------------------------------------------------------------------------
def test_a_file_is_read_from_any_offset(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "x.onnx").write_bytes(b"0123456789")
    (folder / "a" / "y.txt").write_bytes(b"y")
    assert contents(Folder(), address=str(folder / "a")) == {"b/x.onnx": b"0123456789", "y.txt": b"y"}
    place = {"address": str(folder / "a" / "b" / "x.onnx")}
    [file] = Folder().files(place)
    assert (file.name, read(Folder(), place, file, 4)) == ("x.onnx", b"456789")


@pytest.mark.parametrize(
    "address", ["{0}/../secret/key.onnx", "{0}/../secret", "relative", "{0}x", "/etc/passwd", "{0}/a\0b", "{0}/link"]
)
def test_a_path_that_leads_out_is_forbidden(folder: Path, address: str) -> None:
    (folder / "link").symlink_to("../secret/key.onnx")
    with pytest.raises(Forbidden, match="SLIPWAY_SOURCE_FOLDERS"):
        Folder().files({"address": address.format(folder)})


def test_a_link_is_followed_only_inside(folder: Path) -> None:
    (folder / "store").mkdir()
    (folder / "store" / "real").write_bytes(b"real")
    (folder / "model").mkdir()
    (folder / "model" / "model.onnx").symlink_to("../store/real")
    assert contents(Folder(), address=str(folder / "model")) == {"model.onnx": b"real"}
    (folder / "model" / "out.onnx").symlink_to("../../secret/key.onnx")
    with pytest.raises(Forbidden, match=r"'out\.onnx' is a link that leads out"):
        Folder().files({"address": str(folder / "model")})
    (folder / "model" / "out.onnx").unlink()
    (folder / "model" / "folder").symlink_to("../store")
    with pytest.raises(Invalid, match="'folder' is a link to a folder"):
        Folder().files({"address": str(folder / "model")})


def test_a_link_that_is_changed_after_the_listing_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.onnx").write_bytes(b"right")
    (folder / "link.onnx").symlink_to("a.onnx")
    place = {"address": str(folder)}
    file = next(row for row in Folder().files(place) if row.name == "link.onnx")
    (folder / "link.onnx").unlink()
    (folder / "link.onnx").symlink_to("../secret/key.onnx")
    with pytest.raises(Forbidden):
        read(Folder(), place, file)
    # Between the check of the path and its opening, too.
    real = os.open
    (folder / "link.onnx").unlink()
    (folder / "link.onnx").symlink_to("a.onnx")

    def swapped(path: Any, *given: Any, **more: Any) -> int:
        (folder / "link.onnx").unlink()
        (folder / "link.onnx").symlink_to("../secret/key.onnx")
        return real(path, *given, **more)

    monkeypatch.setattr(folders.os, "open", swapped)
    with pytest.raises(Forbidden):
        read(Folder(), place, file)


def test_what_is_no_plain_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe.onnx")
    with pytest.raises(Invalid, match=r"'pipe\.onnx' is neither a file nor a folder"):
        Folder().files({"address": str(folder)})
    with pytest.raises(Invalid, match="not a plain file"):
        read(Folder(), {"address": str(folder)}, SourceFile("pipe.onnx", 1))
    (folder / "loop").symlink_to("loop")
    with pytest.raises(DashboardError):
        Folder().files({"address": str(folder / "loop")})


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (folder / f"{number}.onnx").touch()
    monkeypatch.setattr("dashboard.uploads.sources.base.MOST_FILES", 3)
    with pytest.raises(Invalid, match="more than 3 files"):
        Folder().files({"address": str(folder)})


def test_a_source_is_off_until_an_administrator_allows_a_place(settings: Any, tmp_path: Path) -> None:
    assert allowed_sources() == []
    for name in SOURCES:
        with pytest.raises(Forbidden, match="an administrator allows"):
            source_of(name)
    settings.SOURCE_FOLDERS = [tmp_path]
    assert [one.name for one in allowed_sources()] == ["folder", "triton", "hugging_face"]


# -- Hugging Face ------------------------------------------------------------------------------------------------------
@pytest.fixture
def cached(folder: Path) -> Path:
    """A model in a cache, in the layout of huggingface_hub."""
    model = folder / "models--example--tiny"
    snapshot = model / "snapshots" / COMMIT
    for path in (model / "blobs", model / "refs", snapshot / "onnx"):
        path.mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    weights = b"weights" * 1000
    for name, content, blob in (
        ("config.json", b"{}", "9e26dfeeb6e641a33dae4961196235bdb965b21b"),
        ("onnx/model.onnx", weights, hashlib.sha256(weights).hexdigest()),
    ):
        (model / "blobs" / blob).write_bytes(content)
        up = "../" * (2 + name.count("/"))
        (snapshot / name).symlink_to(f"{up}blobs/{blob}")
    return model


def test_a_model_of_a_cache_is_read_through_its_links(cached: Path) -> None:
    source, weights = HuggingFaceCache(), b"weights" * 1000
    for asked in (
        {"address": str(cached)},
        {"address": str(cached), "revision": "main"},
        {"address": str(cached), "revision": COMMIT},
        {"address": str(cached / "snapshots" / COMMIT)},
    ):
        assert contents(source, **asked) == {"config.json": b"{}", "onnx/model.onnx": weights}
    place = source.located({"address": str(cached)})
    assert place == {"address": str(cached), "revision": COMMIT}
    assert {row.name: row.sha256 for row in source.files(place)} == {
        "config.json": "",
        "onnx/model.onnx": hashlib.sha256(weights).hexdigest(),
    }
    assert source.proposed_name(place) == "tiny"


def test_a_cache_whose_blobs_are_elsewhere_is_forbidden(cached: Path, settings: Any) -> None:
    settings.SOURCE_FOLDERS = [cached / "snapshots"]
    with pytest.raises(Forbidden):
        contents(HuggingFaceCache(), address=str(cached / "snapshots" / COMMIT))
    settings.SOURCE_FOLDERS = [cached.parent]
    (cached / "snapshots" / COMMIT / "config.json").unlink()
    (cached / "snapshots" / COMMIT / "config.json").symlink_to("../../../../../secret/key.onnx")
    with pytest.raises(Forbidden, match=r"'config\.json' is a link that leads out"):
        contents(HuggingFaceCache(), address=str(cached))


@pytest.mark.parametrize("revision", ["v2", "../../..", "/etc", "..", "refs/../main"])
def test_a_revision_that_is_not_there_is_told(cached: Path, revision: str) -> None:
    with pytest.raises((NotFound, Invalid), match="branch"):
        HuggingFaceCache().located({"address": str(cached), "revision": revision})
    (cached / "refs" / "main").write_text("../../../secret")
    with pytest.raises(NotFound, match=f"it has {COMMIT[:12]}"):
        HuggingFaceCache().located({"address": str(cached)})
    with pytest.raises(Invalid, match="holds the folder 'snapshots'"):
        HuggingFaceCache().located({"address": str(cached.parent)})


def test_a_blob_that_changes_is_told(cached: Path) -> None:
    source = HuggingFaceCache()
    place = source.located({"address": str(cached)})
    row = source.files(place)[0]
    (cached / "snapshots" / COMMIT / row.name).resolve().write_bytes(b"{ }")
    with pytest.raises(Conflict, match="was changed"):
        read(source, place, row)


# -- Triton ------------------------------------------------------------------------------------------------------------
def test_a_version_of_a_triton_model_comes_with_what_lies_next_to_it(folder: Path) -> None:
    model = folder / "resnet"
    for number in (1, 10, 2):
        (model / str(number)).mkdir(parents=True)
        (model / str(number) / "model.onnx").write_bytes(b"%d" % number)
    (model / "config.pbtxt").write_bytes(b"config")
    (model / "labels.txt").write_bytes(b"cat")
    source, address = TritonRepository(), f"{model}/"
    others = {"config.pbtxt": b"config", "labels.txt": b"cat"}
    assert contents(source, address=address) == {"10/model.onnx": b"10", **others}
    assert contents(source, address=address, version="2") == {"2/model.onnx": b"2", **others}
    assert source.title(source.located({"address": address})) == f"{model}, version 10"
    with pytest.raises(NotFound, match="has no version 3; it has 1, 2, 10"):
        source.located({"address": address, "version": "3"})
    with pytest.raises(Invalid, match="no folder of a version"):
        source.located({"address": str(model / "1")})
