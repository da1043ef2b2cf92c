"""Names and numbers that may become paths, and those that may not."""

from pathlib import Path

import pytest

from repository.core.errors import Conflict, InvalidName, NotFound, UnsafePath
from repository.core.layout import ModelRepository, check_name, check_version, parse_version, relative_path
from tests.support.model_factory import ODD_NAMES


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


@pytest.mark.parametrize("name", ["digits", "a", "resnet-50.v2", "_x", "0", "A" * 200, *ODD_NAMES])
def test_any_name_of_a_folder_is_a_model(repository: ModelRepository, name: str) -> None:
    assert check_name(name) == name
    repository.create(name)
    assert repository.models() == [name]
    assert repository.invalid_folders() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "../x",
        "/etc",
        "*",
        "a\n",
        "a\0",
        "a\x7f",
        "a\x85",
        "a\u2028",
        "a\udcff",
        "A" * 201,
        "é" * 101,
        None,
        3,
        "a\u202e",
    ],
)
def test_a_name_that_could_become_another_path_is_refused(repository: ModelRepository, name: str) -> None:
    with pytest.raises(InvalidName):
        repository.model_dir(name)


@pytest.mark.parametrize("version", [0, -1, 1 << 63, True, "1", 1.0, None])
def test_a_version_is_a_positive_int64(version: int) -> None:
    with pytest.raises(InvalidName):
        check_version(version)


def test_only_folders_named_like_numbers_are_versions() -> None:
    assert parse_version("12") == 12
    for text in ("0", "01", "-1", "1.0", "", "v1", "¹", "١", "1 ", "9" * 19, "configs"):
        assert parse_version(text) is None


def test_reading_creates_no_folders(repository: ModelRepository) -> None:
    assert repository.models() == []
    assert repository.versions("digits") == []
    assert not repository.has_version("digits", 1)
    assert not repository.root.exists()
    with pytest.raises(NotFound):
        repository.existing_model_dir("digits")


def test_models_and_versions_are_listed_and_stray_entries_passed_over(repository: ModelRepository) -> None:
    for name in ("b/10", "b/2", "b/configs", "b/007", "a", ".git", "*"):
        (repository.root / name).mkdir(parents=True)
    (repository.root / "README").touch()
    (repository.root / "b/3").touch()
    assert repository.models() == ["a", "b"]
    assert repository.versions("b") == [2, 10]


def test_a_model_is_created_once(repository: ModelRepository) -> None:
    repository.create("digits")
    with pytest.raises(Conflict, match="'digits' exists already"):
        repository.create("digits")


@pytest.mark.parametrize("link", ["digits", "digits/1", "digits/config.pbtxt"])
def test_a_link_that_leads_out_of_the_repository_is_refused(
    repository: ModelRepository, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = repository.root / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    reach = repository.config_path if link.endswith("pbtxt") else lambda name: repository.version_dir(name, 1)
    with pytest.raises(UnsafePath, match="leads out of the repository"):
        reach("digits")
    if link == "digits":
        assert repository.models() == []


def test_a_link_to_itself_is_refused(repository: ModelRepository) -> None:
    repository.root.mkdir()
    (repository.root / "loop").symlink_to("loop")
    assert repository.models() == []
    with pytest.raises(UnsafePath):
        repository.versions("loop")


def test_a_repository_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real/digits/1").mkdir(parents=True)
    (tmp_path / "models").symlink_to(tmp_path / "real")
    assert ModelRepository(tmp_path / "models").versions("digits") == [1]


def test_relative_names_of_files_stay_inside() -> None:
    assert relative_path("weights/part-1.bin") == Path("weights/part-1.bin")
    for text in ("", "/x", "../x", "a/../b", "a//b", "./a", "a/.", "C:\\x", "a\0", "a\nb", "x" * 300, "a/" * 600 + "b"):
        with pytest.raises(UnsafePath):
            relative_path(text)


def test_a_folder_that_cannot_be_a_model_is_passed_over_with_a_sentence(repository: ModelRepository) -> None:
    for name in ("good", ".git", "*", "line\nend", "\udcff", "long" * 60):
        (repository.root / name).mkdir(parents=True)
    (repository.root / "notes\n.txt").write_text("a file")
    (repository.root / "loop").symlink_to("loop")
    (repository.root / "outside").symlink_to("/usr")
    assert repository.models() == ["good"]
    sentences = repository.invalid_folders()
    assert len(sentences) == 5
    assert any("folder 'line\\nend' is passed over: a model name has no control characters" in one for one in sentences)
    assert all(one.isascii() and "\n" not in one for one in sentences)
