"""--model-name: what a folder has decides whether it is served as one model or as a repository, and what is refused."""

import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from repository.core.layout import ModelRepository
from serving.cli import command_line
from serving.cli.command_line import parse
from serving.core.errors import Code, ServingError
from serving.repositories import single_model
from serving.repositories.single_model import LinkedRepository, looks_like_one_model
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.support.model_factory import onnx_scale, write_config

NAME = "iris"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def put(path: Path, content: str = "any") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def opened(folder: Path, *, may_be_empty: bool = False) -> ModelRepository:
    def private() -> Path:
        (folder.parent / "private").mkdir()
        return folder.parent / "private"

    return single_model.open_folder(folder, NAME, private, may_be_empty=may_be_empty)


def refusal(folder: Path) -> str:
    with pytest.raises(ServingError) as caught:
        opened(folder)
    assert caught.value.code is Code.INVALID_ARG
    assert not (folder.parent / "private").exists()
    return caught.value.message


def test_a_models_folder_is_served_under_the_given_name_with_its_own_configuration(folder: Path) -> None:
    put(folder / "config.pbtxt", 'name: "other"\nmax_batch_size: 3')
    put(folder / "labels.txt", "cat")
    put(folder / "configs" / "h100.pbtxt")
    put(folder / "2" / "model.onnx")
    found = opened(folder)
    assert (found.models(), found.versions(NAME)) == ([NAME], [2])
    here = found.model_dir(NAME)
    assert "max_batch_size: 3" in (here / "config.pbtxt").read_text()
    assert "other" not in (here / "config.pbtxt").read_text()
    assert (here / "labels.txt").read_text() == "cat"
    assert (here / "configs" / "h100.pbtxt").exists()
    assert (folder / "config.pbtxt").read_text() == 'name: "other"\nmax_batch_size: 3'


def test_a_file_with_any_name_is_version_1(folder: Path) -> None:
    put(folder / "frozen.onnx")
    put(folder / "README.md")
    here = opened(folder).model_dir(NAME)
    assert (here / "1" / "frozen.onnx").exists()
    assert (here / "config.pbtxt").read_text() == 'backend: "onnxruntime"\ndefault_model_filename: "frozen.onnx"\n'


def test_an_export_of_tensorflow_is_put_where_a_server_looks_for_it(folder: Path) -> None:
    put(folder / "0003" / "saved_model.pb")
    put(folder / "0003" / "variables" / "variables.index")
    found = opened(folder)
    assert found.versions(NAME) == [3]
    assert (found.version_dir(NAME, 3) / "model.savedmodel" / "variables" / "variables.index").exists()


@pytest.mark.asyncio
async def test_a_poll_finds_new_versions_of_a_folder_that_is_laid_out_as_a_model(folder: Path) -> None:
    shutil.move(onnx_scale(folder.parent / "made", config=None) / "1", folder / "1")
    poll = {"model_control_mode": "poll", "repository_poll_secs": 0.05, "model_name": NAME}
    async with core(folder, **poll) as server:
        assert list(server.model_metadata(NAME).versions) == ["1"]
        shutil.copytree(folder / "1", folder.parent / "next")
        (folder.parent / "next").rename(folder / "2")
        await until(lambda: list(server.model_metadata(NAME).versions) == ["2"])


def test_folders_of_models_are_a_repository_wherever_links_lead(folder: Path) -> None:
    put(folder.parent / "elsewhere" / "1" / "model.onnx")
    (folder / "linked").symlink_to(folder.parent / "elsewhere")
    put(folder / "2024" / "1" / "model.onnx")  # a model that has a number as its name
    put(folder / "lost+found" / "1" / "model.onnx")
    put(folder / "README.md")
    found = opened(folder)
    assert isinstance(found, LinkedRepository)
    assert found.root == folder
    assert found.models() == ["2024", "linked"]
    assert found.versions("linked") == [1]


def test_a_folder_may_be_empty_where_models_come_later(folder: Path) -> None:
    assert opened(folder, may_be_empty=True).models() == []
    assert refusal(folder) == f"'{folder}' has no model: it is empty"
    put(folder / "notes.xyz")
    with pytest.raises(ServingError, match=r"expected config.pbtxt, a folder 1, a file such as model.onnx"):
        opened(folder, may_be_empty=True)


def test_what_nobody_can_decide_is_refused(folder: Path) -> None:
    put(folder / "b.onnx")
    put(folder / "model" / "1" / "model.onnx")
    assert "has 'b.onnx' of one model and folders of models, 'model': leave one of the two out" in refusal(folder)
    shutil.rmtree(folder / "model")
    put(folder / "a.onnx")
    assert "has several models, 'a.onnx', 'b.onnx': leave one of them, or name it in default_model_filename" in refusal(
        folder
    )
    put(folder / "1" / "model.onnx")
    assert "has folders of versions and the file 'a.onnx' beside them" in refusal(folder)
    (folder / "a.onnx").unlink()
    (folder / "b.onnx").unlink()
    put(folder / "01" / "model.onnx")
    assert "has version 1 twice: '01' and '1'" in refusal(folder)


def test_a_configuration_decides_which_file_is_meant(folder: Path) -> None:
    put(folder / "a.onnx")
    put(folder / "b.onnx")
    write_config(folder, 'default_model_filename: "b.onnx"')
    assert opened(folder).versions(NAME) == [1]


def test_a_configuration_that_cannot_be_read_is_named(folder: Path) -> None:
    write_config(folder, "max_batch_size: x")
    assert refusal(folder).startswith(f"'{folder}': ")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            ["style/model.onnx"],
            "the folder 'style' has 'model.onnx', but no version: move the model's files into 'style/1'",
        ),
        (["model-store/mnist.mar", "config/config.properties"], "give it as --model-store, with --ts-config"),
        (
            ["model.safetensors", "config.json"],
            "export the complete model as ONNX, for models of Hugging Face with optimum",
        ),
        (["model.joblib", "model-settings.json"], "a pickle can run code"),
    ],
)
def test_a_folder_without_a_model_says_what_to_do(files: list[str], sentence: str, folder: Path) -> None:
    for file in files:
        put(folder / file)
    assert sentence in refusal(folder)


@pytest.mark.asyncio
async def test_a_model_that_needs_links_needs_a_folder_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "model.onnx")
    monkeypatch.setattr(tempfile, "tempdir", str(put(folder.parent / "file") / "below"))
    with pytest.raises(ServingError, match="cannot be served as one model: Not a directory"):
        async with core(folder, model_name=NAME):
            pass


def test_a_repository_that_looks_like_one_model_is_noticed(folder: Path) -> None:
    assert not looks_like_one_model(folder)
    assert not looks_like_one_model(folder / "missing")
    put(folder / "1" / "model.onnx")
    assert looks_like_one_model(folder)
    put(folder / "model" / "1" / "model.onnx")
    assert not looks_like_one_model(folder)
    write_config(folder, "")
    assert looks_like_one_model(folder)


def test_the_folder_of_an_image_may_come_after_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = folder / "later"
    flags = [f"--model-repository={later}", f"--model-name={NAME}"]
    monkeypatch.setenv("MODEL_INIT_MODE", "async")
    threading.Timer(0.2, later.mkdir).start()
    assert parse(flags)[0].model_repository == (later,)
    later.rmdir()
    monkeypatch.setattr(command_line, "IMAGE_S", 0.0)
    with pytest.raises(SystemExit):
        parse(flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model-name=a/b", "--model-repository=."], "'a/b' cannot be the name of a model"),
        (
            ["--model-name=a", "--model-repository=.", "--model-repository=/"],
            "--model-name needs one --model-repository",
        ),
        (
            ["--model-name=a", "--model-repository=s3://bucket/models"],
            "--model-name needs a --model-repository on this machine",
        ),
    ],
)
def test_the_flag_is_for_one_folder(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(flags)
    assert sentence in capsys.readouterr().err
