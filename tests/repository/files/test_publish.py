"""Publishing is all or nothing, also for a process that is killed."""

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from repository.config.document import Document
from repository.core.errors import Conflict, InvalidConfig, InvalidName, NoSpace, NotFound, UnsafePath
from repository.core.layout import ModelRepository
from repository.files import publish, storage
from repository.files.staging import remove_leftovers
from tests.repository.files.publishing import publish_version

CONFIG = 'name: "digits"\n# by hand\nmax_batch_size: 8\n'


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"weights")
    (folder / "assets/vocabulary.txt").write_text("a\nb\n")
    return folder


def written(text: str) -> str:
    return Document.read(text).stamped(1)


def everything(repository: ModelRepository) -> list[str]:
    return sorted(path.relative_to(repository.root).as_posix() for path in repository.root.rglob("*"))


def test_a_first_version_makes_the_model_with_its_configuration_and_labels(
    repository: ModelRepository, source: Path
) -> None:
    manifest = publish_version(
        repository, name="digits", version=1, source=source, config_text=CONFIG, model_files={"labels.txt": b"zero\n"}
    )
    assert repository.versions("digits") == [1]
    assert repository.config_path("digits").read_text() == written(CONFIG)
    assert (repository.model_dir("digits") / "labels.txt").read_text() == "zero\n"
    assert (repository.version_dir("digits", 1) / "assets/vocabulary.txt").read_text() == "a\nb\n"
    assert manifest.files["model.onnx"] == (7, hashlib.sha256(b"weights").hexdigest())
    assert manifest.size == 11
    assert source.is_dir()


def test_the_hash_of_a_version_depends_on_names_and_contents_alone(repository: ModelRepository, source: Path) -> None:
    first = publish_version(repository, name="a", version=1, source=source)
    second = publish_version(repository, name="b", version=9, source=source)
    assert first.sha256 == second.sha256
    (source / "model.onnx").rename(source / "other.onnx")
    assert publish_version(repository, name="c", version=1, source=source).sha256 != first.sha256


def test_a_second_version_stands_beside_the_first(repository: ModelRepository, source: Path) -> None:
    publish_version(repository, name="digits", version=1, source=source, config_text=CONFIG)
    publish_version(repository, name="digits", version=3, source=source)
    assert repository.versions("digits") == [1, 3]
    assert repository.config_path("digits").read_text() == written(CONFIG)


def test_an_ensemble_has_an_empty_version(repository: ModelRepository) -> None:
    publish_version(repository, name="pipeline", version=1, source=None, config_text='platform: "ensemble"')
    assert everything(repository) == ["pipeline", "pipeline/1", "pipeline/config.pbtxt"]


def test_a_source_that_is_moved_is_untouched_when_its_number_was_used(
    repository: ModelRepository, source: Path
) -> None:
    publish_version(repository, name="digits", version=1, source=source, move=True)
    again = source.parent / "again"
    again.mkdir()
    (again / "model.onnx").write_bytes(b"other")
    with pytest.raises(Conflict):
        publish_version(repository, name="digits", version=1, source=again, move=True)
    assert (again / "model.onnx").read_bytes() == b"other"


def test_a_number_is_never_used_again(repository: ModelRepository, source: Path) -> None:
    publish_version(repository, name="digits", version=1, source=source)
    with pytest.raises(Conflict, match="version 1 of 'digits' exists already"):
        publish_version(repository, name="digits", version=1, source=source)
    publish.archive_version(repository, name="digits", version=1)
    with pytest.raises(Conflict):
        publish_version(repository, name="digits", version=1, source=source)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "../x"}, InvalidName),
        ({"version": 0}, InvalidName),
        ({"config_text": "nonsense: 1"}, InvalidConfig),
        ({"model_files": {"../labels.txt": b""}}, UnsafePath),
        ({"model_files": {"config.pbtxt": b""}}, UnsafePath),
        ({"model_files": {"2/model.onnx": b""}}, UnsafePath),
    ],
)
def test_bad_arguments_leave_everything_as_it_was(
    repository: ModelRepository, source: Path, arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        publish_version(repository, **{"name": "digits", "version": 1, "source": source, **arguments})
    assert repository.models() == []


def test_links_in_a_source_are_refused(repository: ModelRepository, source: Path) -> None:
    (source / "assets/passwd").symlink_to("/etc/passwd")
    with pytest.raises(UnsafePath, match=r"'assets/passwd' is neither a file nor a folder"):
        publish_version(repository, name="digits", version=1, source=source)
    assert repository.models() == []


def test_a_full_disk_is_refused_before_anything_is_written(repository: ModelRepository, source: Path) -> None:
    repository.reserve = 1 << 60
    with pytest.raises(NoSpace) as caught:
        publish_version(repository, name="digits", version=1, source=source)
    assert (caught.value.needed, caught.value.free) == (11, 0)
    assert repository.models() == []
    assert list(repository.staging.glob(".publish-*")) == []


def test_a_disk_that_fills_while_copying_leaves_nothing(
    repository: ModelRepository, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.shutil, "copystat", full)
    with pytest.raises(NoSpace):
        publish_version(repository, name="digits", version=1, source=source)
    assert repository.models() == []
    assert list(repository.staging.glob(".publish-*")) == []


def test_a_version_is_archived_and_restored(repository: ModelRepository, source: Path) -> None:
    publish_version(repository, name="digits", version=1, source=source)
    publish.archive_version(repository, name="digits", version=1)
    assert repository.versions("digits") == []
    assert repository.archived_versions("digits") == [1]
    publish.restore_version(repository, name="digits", version=1)
    assert repository.versions("digits") == [1]
    publish.restore_version(repository, name="digits", version=1)
    publish.archive_version(repository, name="digits", version=1)
    publish.delete_model(repository, name="digits")
    assert repository.archived_versions("digits") == []
    with pytest.raises(NotFound):
        publish.restore_version(repository, name="digits", version=1)


def test_a_model_is_deleted_with_all_it_has(repository: ModelRepository, source: Path) -> None:
    for version in (1, 2):
        publish_version(repository, name="digits", version=version, source=source)
    publish.archive_version(repository, name="digits", version=1)
    publish.delete_model(repository, name="digits")
    assert repository.models() == []
    assert repository.archived_versions("digits") == []
    with pytest.raises(NotFound):
        publish.delete_model(repository, name="digits")


def test_the_configuration_is_replaced_whole(repository: ModelRepository, source: Path) -> None:
    publish_version(repository, name="digits", version=1, source=source, config_text=CONFIG)
    publish.write_config(repository, name="digits", document=Document.read("max_batch_size: 2"), release=1)
    assert repository.config_path("digits").read_text() == written("max_batch_size: 2")
    with pytest.raises(InvalidConfig):
        publish.write_config(repository, name="digits", document=Document.read("max_batch_size: two"), release=2)
    assert repository.config_path("digits").read_text() == written("max_batch_size: 2")
    assert everything(repository) == sorted(["digits", "digits/1", "digits/config.pbtxt", "digits/1/assets",
                                             "digits/1/assets/vocabulary.txt", "digits/1/model.onnx"])  # fmt: skip


def test_of_many_publications_of_one_number_exactly_one_succeeds(repository: ModelRepository, source: Path) -> None:
    outcomes: list[str] = []

    def attempt() -> None:
        try:
            publish_version(repository, name="digits", version=1, source=source)
            outcomes.append("published")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict"] * 7 + ["published"]


_PUBLISHER = """
import sys
from pathlib import Path
from repository.core.layout import ModelRepository
from tests.repository.files.publishing import publish_version
repository, source = ModelRepository(Path(sys.argv[1])), Path(sys.argv[2])
print("ready", flush=True)
for version in range(1, 10_000):
    name = f"model-{version % 7}"
    publish_version(repository, name=name, version=version, source=source, config_text="max_batch_size: 1")
"""


def test_a_killed_publisher_leaves_no_half_version(repository: ModelRepository, tmp_path: Path) -> None:
    """Killed at random moments; whoever reads meanwhile sees versions with all of their files, or none."""
    source = tmp_path / "source"
    source.mkdir()
    for index in range(20):
        (source / f"part-{index}").write_bytes(b"x" * 1000)
    for kill_after in (1, 3, 8, 20):
        command = [sys.executable, "-c", _PUBLISHER, str(repository.root), str(source)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
            assert process.stdout is not None
            process.stdout.readline()
            _wait_for_versions(repository, process, kill_after)
            process.send_signal(signal.SIGKILL)
        for name in repository.models():
            assert repository.config_path(name).is_file()
            for version in repository.versions(name):
                assert len(storage.plain_files(repository.version_dir(name, version))) == 20
        publish.delete_model(repository, name="model-1")
        for name in repository.models():
            publish.delete_model(repository, name=name)
    remove_leftovers(repository, older_than_s=0)
    assert list(repository.staging.glob(".publish-*")) == []


def _wait_for_versions(repository: ModelRepository, process: "subprocess.Popen[bytes]", count: int) -> None:
    deadline = time.monotonic() + 60
    while sum(len(repository.versions(name)) for name in repository.models()) < count:
        assert process.poll() is None, "the publisher ended by itself"
        assert time.monotonic() < deadline


def _hold(path: str, ready: "multiprocessing.synchronize.Event") -> None:
    with storage.locked(Path(path), "it"):
        ready.set()
        signal.pause()


def test_a_lock_is_waited_for_and_freed_by_the_death_of_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path / "lock"), ready))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(Conflict, match="try again"), storage.locked(tmp_path / "lock", "it", wait_s=0.1):
        pass
    os.kill(holder.pid or 0, signal.SIGKILL)
    with storage.locked(tmp_path / "lock", "it"):
        pass
    holder.join()
