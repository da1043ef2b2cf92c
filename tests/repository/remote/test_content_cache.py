"""The cache of content is bounded, never deletes what a model uses, and says in one sentence that a disk is full."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository.core.errors import NoSpace, Unreachable
from repository.remote.content_cache import SHA256, ContentCache
from tests.support.serving_process import PATIENCE_S

SIZE = 1000


def reading(content: bytes) -> "Iterator[bytes]":
    yield content


def placed(cache: ContentCache, target: Path, number: int) -> Path:
    content = bytes([number]) * SIZE
    cache.make_room(SIZE)
    cache.place(target, f"key-{number}", SIZE, lambda start: reading(content[start:]))
    return target


def test_content_that_no_model_uses_is_deleted_the_least_recently_used_first(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "cache", limit=3 * SIZE)
    for number in (1, 2, 3):
        file = placed(cache, tmp_path / f"file-{number}", number)
        if number > 1:
            file.unlink()  # a model that goes; the first one stays
    placed(cache, tmp_path / "again", 2).unlink()
    placed(cache, tmp_path / "file-4", 4)
    assert [cache.has(f"key-{number}") for number in (1, 2, 3, 4)] == [True, True, False, True]
    assert len(list((tmp_path / "cache" / "index").iterdir())) == 3
    placed(cache, tmp_path / "file-5", 5)
    placed(cache, tmp_path / "file-6", 6)
    assert [cache.has(f"key-{number}") for number in (1, 2, 4, 5, 6)] == [True, False, True, True, True]
    assert (tmp_path / "file-1").read_bytes() == b"\1" * SIZE


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ContentCache(tmp_path / "cache", limit=1 << 40)
    placed(cache, tmp_path / "file", 1).unlink()
    cache = ContentCache(tmp_path / "cache", limit=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(NoSpace, match=r"^2 MiB are needed on the disk, but only 1 KiB are free$"):
        cache.make_room(2 << 20)
    assert cache.has("key-1")  # nothing is deleted in vain
    cache.make_room(SIZE)
    assert not cache.has("key-1")


def test_content_with_another_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "cache", limit=1 << 30)
    wanted = "0" * 64
    for _ in range(2):
        with pytest.raises(Unreachable, match=f"SHA-256 {wanted[:12]}… has another hash"):
            cache.place(tmp_path / "file", SHA256 + wanted, 3, lambda start: reading(b"abc"[start:]), wanted)
    assert not list((tmp_path / "cache").rglob(f"*{wanted}*"))
    assert not (tmp_path / "file").exists()


DOWNLOAD = """
import sys, time
from pathlib import Path
from repository.remote.content_cache import ContentCache
def read(start):
    yield b"a" * 500
    print("half", flush=True)
    time.sleep(600)
ContentCache(Path(sys.argv[1]), 1 << 30).place(Path(sys.argv[1]) / "file", "key", 1000, read)
"""


def test_a_process_waits_for_another_and_goes_on_where_that_was_killed(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "cache", limit=1 << 30)
    command = [sys.executable, "-c", DOWNLOAD, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"half\n"
        began, killed = list[int](), threading.Event()

        def rest(start: int) -> Iterator[bytes]:
            began.extend([start] if killed.is_set() else [-1])
            yield b"a" * (1000 - start)

        waiting = threading.Thread(target=cache.place, args=(tmp_path / "file", "key", 1000, rest))
        waiting.start()
        killed.set()
        other.kill()
        waiting.join(PATIENCE_S)
    assert (tmp_path / "file").read_bytes() == b"a" * 1000
    assert began == [500]
