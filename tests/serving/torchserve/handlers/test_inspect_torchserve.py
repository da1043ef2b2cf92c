"""Inspection of a TorchServe archive: its manifest, its handler, and problems that would keep it from running."""

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from serving.inspection.report import ReportObject, inspect
from tests.support.torchserve_archives import archive, files_of

READS = """
import json
import ts.torch_handler.base_handler
import no_such_package.part
import helper

def handle(data, context):
    return data
"""


def said(report: ReportObject, severity: str) -> list[str]:
    return [problem["message"] for problem in report["problems"] if problem["severity"] == severity]


def test_an_archive_is_reported_with_its_manifest_its_tensors_and_a_short_configuration(tmp_path: Path) -> None:
    config = {"batchSize": 8, "minWorkers": 2, "handler": {"top": 3}, "asyncCommunication": True}
    files = {"helper.py": "", "requirements.txt": "requests\n"}
    made = archive(
        tmp_path / "cats.mar",
        handler=READS,
        config=config,
        files=files,
        requirementsFile="requirements.txt",
        version="2.1b",
    )
    report = inspect(made)
    found = report["archive"]
    assert found is not None
    assert (report["format"], report["backend"], report["filename"]) == ("torchserve", "torchserve", "model.mar")
    assert (found["name"], found["version"], found["handler"], found["handler_file"]) == (
        "cats",
        "2.1b",
        "handler.py",
        "handler.py",
    )
    assert found["settings"]["handler"] == {"top": 3}
    assert found["files"]["requirements.txt"] == 9
    assert report["inputs"] == [{"name": "data", "datatype": "BYTES", "shape": [-1, -1]}]
    assert report["outputs"] == [{"name": "data", "datatype": "BYTES", "shape": [-1, 1]}]
    assert report["config"] == 'name: "cats"\nbackend: "torchserve"\n'
    assert said(report, "error") == []
    missing, unserved = said(report, "warning")
    assert "imports no_such_package, which" in missing
    assert "asyncCommunication" in unserved
    assert "'requirements.txt' is installed only where" in said(report, "note")[0]


@pytest.mark.parametrize("form", ["folder", "version folder", "tar"])
def test_an_unpacked_archive_and_a_tar_file_are_archives_too(form: str, tmp_path: Path) -> None:
    folder = {"folder": tmp_path / "1" / "model.mar", "version folder": tmp_path / "1"}.get(form, tmp_path / "cats")
    for name, content in files_of("cats").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path = tmp_path / "1"
    if form == "tar":
        path = tmp_path / "model.mar"
        with tarfile.open(path, "w:gz") as packed:  # with the folder around all, as torch-model-archiver packs it
            packed.add(folder, "cats")
    report = inspect(path)
    assert said(report, "error") == []
    assert report["archive"] is not None
    assert report["archive"]["handler_file"] == "handler.py"


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"handler": "def handle(:\n"}, "'handler.py', line 1: invalid syntax"),
        ({"handler": "", "handler_name": "gone.py"}, "the archive has no handler 'gone.py'"),
        ({"serializedFile": "net.pt"}, "the archive has no 'net.pt', which its manifest names"),
        ({"config": {"parallelType": "tp"}}, "divides one model among several processes"),
        ({"runtime": "LSP"}, "its handler is a C++ library"),
        ({"files": {"../evil.py": ""}}, "'../evil.py' in the archive is not a plain relative file name"),
    ],
)
def test_an_archive_that_cannot_be_served_says_why(contents: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    (error, *_) = said(inspect(archive(tmp_path / "cats.mar", **contents)), "error")
    assert sentence in error


@pytest.mark.parametrize(("text", "sentence"), [("a: [", "cannot be read (line 1)"), ("- 1", "must be a mapping")])
def test_text_that_is_no_setting_is_ignored_and_named(text: str, sentence: str, tmp_path: Path) -> None:
    files = {"model-config.yaml": text}
    report = inspect(archive(tmp_path / "cats.mar", files=files, configFile="model-config.yaml"))
    assert said(report, "error") == []
    assert any(sentence in warning for warning in said(report, "warning"))


def test_an_unusable_setting_is_ignored_and_named(tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "cats.mar", config={"batchSize": "many", "deviceType": "tpu"}))
    assert said(report, "error") == []
    (warning,) = said(report, "warning")
    assert "count as absent" in warning
    assert "'batchSize' must be a whole number from 1" in warning
    assert "'deviceType' must be cpu or gpu, not 'tpu'" in warning


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"text", b"\x1f\x8b\x08junk"])
def test_a_file_with_only_the_name_of_an_archive_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.mar").write_bytes(content)
    (error,) = said(inspect(tmp_path / "model.mar"), "error")
    assert "archive" in error


def test_an_archive_whose_yaml_stands_for_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    made = archive(tmp_path / "cats.mar", files={"c.yaml": bomb}, configFile="c.yaml")
    assert "stands for more than" in said(inspect(made), "error")[0]


def test_a_zip_file_with_a_manifest_is_an_archive_whatever_its_name(tmp_path: Path) -> None:
    made = archive(tmp_path / "cats.mar").rename(tmp_path / "cats.zip")
    assert zipfile.is_zipfile(made)
    assert inspect(made)["format"] == "torchserve"
