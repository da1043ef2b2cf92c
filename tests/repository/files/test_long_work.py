"""Publishing and moving large versions: progress of each step, a stop at any step, moves between disks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from repository.config.document import Document
from repository.core.errors import Conflict, NoSpace
from repository.core.layout import ModelRepository
from repository.files import publish, storage
from repository.files.progress import Progress
from repository.files.staging import remove_leftovers, staging_folder

CONTENT = b"weights" * 1000


class Heard(Progress):
    """Records the progress that it hears of; `until(steps, done)` ends the work."""

    def __init__(self, until: Callable[[list[str], int], bool] = lambda steps, done: False) -> None:
        self.whole = self.done = 0
        self.steps: list[str] = []
        self.until = until

    def plan(self, size: int) -> None:
        self.whole += size

    def step(self, name: str) -> None:
        self.steps.append(name)

    def advance(self, size: int) -> None:
        self.done += size
        if self.until(self.steps, self.done):
            raise Stopped


class Stopped(Exception):
    pass


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models", reserve=0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(CONTENT)
    (folder / "assets" / "labels.txt").write_bytes(b"zero\n")
    return folder


@pytest.fixture
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is on the disk of another: nothing can be linked or renamed from one to the other."""
    monkeypatch.setattr(storage, "same_disk", lambda one, other: False)


def stage(repository: ModelRepository, source: Path, progress: Progress, *, move: bool = False) -> None:
    with publish.stage_version(repository, version=1, source=source, move=move, progress=progress) as staged:
        publish.place_version(repository, staged, name="digits", document=Document.read("max_batch_size: 8"), release=1)


def leftovers(repository: ModelRepository) -> list[Path]:
    return [
        path for place in (repository.root, repository.staging, repository.archive) for path in place.glob(".publish-*")
    ]


def test_the_bytes_of_progress_are_the_planned_ones(repository: ModelRepository, source: Path) -> None:
    heard = Heard()
    stage(repository, source, heard)
    assert heard.steps == ["Copying to the repository", "Hashing", "Flushing to the disk"]
    assert heard.done == heard.whole == 3 * (len(CONTENT) + 5)


def test_files_on_the_same_disk_are_not_copied(repository: ModelRepository, source: Path) -> None:
    heard = Heard()
    stage(repository, source, heard, move=True)
    assert heard.steps == ["Hashing", "Flushing to the disk"]
    assert heard.done == heard.whole
    placed = repository.version_dir("digits", 1) / "model.onnx"
    assert placed.stat().st_ino == (source / "model.onnx").stat().st_ino


@pytest.mark.parametrize("step", ["Copying to the repository", "Hashing", "Flushing to the disk"])
def test_stopped_at_any_step_it_leaves_nothing_and_can_be_done_again(
    repository: ModelRepository, source: Path, step: str
) -> None:
    with pytest.raises(Stopped):
        stage(repository, source, Heard(lambda steps, done: steps[-1:] == [step]))
    assert repository.models() == []
    assert leftovers(repository) == []
    stage(repository, source, Heard())
    assert repository.versions("digits") == [1]


@pytest.mark.usefixtures("two_disks")
def test_a_repository_on_another_disk_than_staging_gets_whole_versions(
    repository: ModelRepository, source: Path
) -> None:
    seen: list[list[str]] = []
    heard = Heard(lambda steps, done: bool(seen.append(repository.models())))
    stage(repository, source, heard, move=True)
    assert heard.steps[0] == "Copying to the repository"
    assert [] in seen
    assert all(models == [] for models in seen)
    assert (repository.version_dir("digits", 1) / "model.onnx").read_bytes() == CONTENT
    assert leftovers(repository) == []


@pytest.mark.usefixtures("two_disks")
def test_a_version_goes_to_an_archive_on_another_disk_and_comes_back(repository: ModelRepository, source: Path) -> None:
    stage(repository, source, Heard())
    heard = Heard()
    publish.archive_version(repository, name="digits", version=1, progress=heard)
    assert heard.steps == ["Copying to another disk", "Flushing to the disk"]
    assert heard.done == heard.whole == 2 * (len(CONTENT) + 5)
    assert repository.versions("digits") == []
    publish.restore_version(repository, name="digits", version=1)
    assert (repository.version_dir("digits", 1) / "model.onnx").read_bytes() == CONTENT
    assert repository.archived_versions("digits") == []
    assert leftovers(repository) == []


@pytest.mark.usefixtures("two_disks")
def test_a_move_that_was_stopped_leaves_the_version_where_it_was(repository: ModelRepository, source: Path) -> None:
    stage(repository, source, Heard())
    with pytest.raises(Stopped):
        publish.archive_version(repository, name="digits", version=1, progress=Heard(lambda steps, done: True))
    assert repository.versions("digits") == [1]
    assert repository.archived_versions("digits") == []
    assert leftovers(repository) == []


@pytest.mark.usefixtures("two_disks")
def test_a_move_that_was_killed_after_its_rename_goes_on_when_it_is_asked_again(
    repository: ModelRepository, source: Path
) -> None:
    stage(repository, source, Heard())
    storage.copy_tree(repository.version_dir("digits", 1), repository.archived_version_dir("digits", 1))
    publish.archive_version(repository, name="digits", version=1)
    assert repository.versions("digits") == []
    assert repository.archived_versions("digits") == [1]
    publish.archive_version(repository, name="digits", version=1)
    assert repository.archived_versions("digits") == [1]


def test_an_archived_version_is_not_lost_to_another_of_its_number(repository: ModelRepository, source: Path) -> None:
    stage(repository, source, Heard())
    publish.archive_version(repository, name="digits", version=1)
    by_hand = repository.version_dir("digits", 1)
    by_hand.mkdir()
    (by_hand / "model.onnx").write_bytes(b"other")
    with pytest.raises(Conflict, match="with different files"):
        publish.restore_version(repository, name="digits", version=1)
    assert (repository.archived_version_dir("digits", 1) / "model.onnx").read_bytes() == CONTENT


@pytest.mark.usefixtures("two_disks")
def test_a_disk_without_room_beside_its_reserve_is_refused_before_a_byte_is_copied(
    repository: ModelRepository, source: Path
) -> None:
    stage(repository, source, Heard())
    repository.reserve = 1 << 60
    heard = Heard()
    with pytest.raises(NoSpace, match="kept for the database and logs"):
        publish.archive_version(repository, name="digits", version=1, progress=heard)
    assert heard.done == 0
    assert repository.versions("digits") == [1]


def test_folders_of_killed_processes_are_removed(repository: ModelRepository) -> None:
    for place in (repository.staging, repository.root, repository.archive):
        (place / ".publish-left").mkdir(parents=True)
    with staging_folder(repository, repository.root) as work:
        assert remove_leftovers(repository) == 0
        assert remove_leftovers(repository, older_than_s=0) == 3
        assert leftovers(repository) == [work]
    assert leftovers(repository) == []
