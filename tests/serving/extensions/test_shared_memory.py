"""Regions that clients register: mapped with their bounds, refused with a sentence, gone when unregistered."""

import os
import uuid
from pathlib import Path

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from serving.extensions.shared_memory import SharedMemory
from tests.support.serving_process import open_files


@pytest.fixture
def key():
    name = f"/slipway-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm") / name.strip("/")
    path.write_bytes(bytes(range(256)) * 64)
    yield name
    path.unlink()


def _code(call, *arguments):
    with pytest.raises(ServingError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


def test_a_region_is_seen_and_written_through(key):
    memory = SharedMemory(allowed=True)
    memory.register_system("in", key, 4100, 1000)
    view = memory.view("in", 10, 4)
    assert view.tolist() == [(4110 + i) % 256 for i in range(4)]
    view[:] = 9
    assert Path("/dev/shm", key.strip("/")).read_bytes()[4110:4114] == b"\x09" * 4
    (region,) = memory.system_status("in")
    assert (region.name, region.key, region.offset, region.byte_size) == ("in", key, 4100, 1000)


@pytest.mark.parametrize(("offset", "size"), [(0, 1001), (1000, 1), (-1, 2), (5, -1), (2**62, 2**62)])
def test_no_view_leaves_the_region(key, offset, size):
    memory = SharedMemory(allowed=True)
    memory.register_system("in", key, 0, 1000)
    code, message = _code(memory.view, "in", offset, size)
    assert code is Code.INVALID_ARG
    assert "for shared memory region: 'in' has 1000 bytes" in message


@pytest.mark.parametrize("bad", ["/../etc/passwd", "a/b", "", "..", "/", "/x\0y", "/" + "x" * 300])
def test_a_key_is_never_a_path(bad):
    code, message = _code(SharedMemory(allowed=True).register_system, "in", bad, 0, 10)
    assert code is Code.INTERNAL, "as Triton, whose tests look for it"
    assert message.startswith("Unable to open shared memory region: ")


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret" * 10)
    link = Path("/dev/shm", f"slipway-link-{uuid.uuid4().hex}")
    link.symlink_to(tmp_path / "secret")
    try:
        assert _code(SharedMemory(allowed=True).register_system, "in", link.name, 0, 10)[0] is Code.INTERNAL
    finally:
        link.unlink()


def test_an_object_that_does_not_exist_or_is_too_short_is_refused(key):
    memory = SharedMemory(allowed=True)
    code, message = _code(memory.register_system, "in", "/no-such-key", 0, 10)
    assert (code, message) == (Code.INTERNAL, "Unable to open shared memory region: '/no-such-key'")
    code, message = _code(memory.register_system, "in", key, 16000, 1000)
    assert "beyond its end" in message
    for size in (0, -1, 2**60):
        assert _code(memory.register_system, "in", key, 0, size)[0] is Code.INVALID_ARG


def test_names_are_unique_and_unregistering_forgets_them(key):
    memory = SharedMemory(allowed=True)
    memory.register_system("in", key, 0, 10)
    assert _code(memory.register_system, "in", key, 0, 10)[0] is Code.ALREADY_EXISTS
    used = memory.view("in", 0, 4)
    memory.unregister_system("in")
    memory.unregister_system("in")
    assert memory.system_status() == []
    assert _code(memory.view, "in", 0, 1)[0] is Code.NOT_FOUND
    assert _code(memory.system_status, "in")[0] is Code.NOT_FOUND
    assert used.tolist() == [0, 1, 2, 3], "a request under way keeps its memory"
    memory.register_system("in", key, 0, 10)


def test_a_region_that_its_client_has_shrunk_is_refused_instead_of_read(key):
    memory = SharedMemory(allowed=True)
    memory.register_system("in", key, 0, 16000)
    os.truncate(Path("/dev/shm", key.strip("/")), 100)
    code, message = _code(memory.view, "in", 8000, 4)
    assert code is Code.INVALID_ARG
    assert "has become shorter" in message


def test_all_regions_go_at_once(key):
    memory = SharedMemory(allowed=True)
    for name in "abc":
        memory.register_system(name, key, 0, 10)
    memory.unregister_system()
    assert memory.system_status() == []


def test_only_pieces_that_share_bytes_of_an_object_overlap(key):
    memory = SharedMemory(allowed=True)
    memory.register_system("whole", key, 0, 4096)
    memory.register_system("rest", key, 1000, 96)
    assert memory.overlap(("whole", 990, 20), ("rest", 0, 96))
    assert memory.overlap(("rest", 95, 1), ("whole", 0, 4096))
    assert not memory.overlap(("whole", 0, 1000), ("rest", 0, 96))
    assert not memory.overlap(("whole", 1096, 10), ("rest", 0, 96))
    other = Path("/dev/shm", f"slipway-other-{uuid.uuid4().hex}")
    other.write_bytes(bytes(4096))
    try:
        memory.register_system("other", other.name, 0, 4096)
    finally:
        other.unlink()
    assert not memory.overlap(("whole", 0, 4096), ("other", 0, 4096))


def test_mapping_leaves_no_descriptor_open(key):
    memory = SharedMemory(allowed=True)
    before = open_files()
    for index in range(50):
        memory.register_system(f"r{index}", key, 0, 10)
        memory.unregister_system(f"r{index}")
    assert open_files() <= before


def test_without_the_flag_nothing_is_registered(key):
    code, message = _code(SharedMemory(allowed=False).register_system, "in", key, 0, 10)
    assert code is Code.UNAVAILABLE
    assert "--allow-client-shm=true" in message


def test_cuda_regions_need_a_gpu(monkeypatch):
    monkeypatch.setattr("serving.extensions.shared_memory.gpu_count", lambda: 0)
    code, message = _code(SharedMemory(allowed=True).register_cuda, "in", bytes(64), 0, 16)
    assert code is Code.UNAVAILABLE
    assert "needs GPU 0, but this machine has 0" in message


def test_arrays_can_be_made_of_a_view(key):
    memory = SharedMemory(allowed=True)
    memory.register_system("in", key, 3, 100)
    array = memory.view("in", 1, 8).view(np.float32)
    assert array.shape == (2,)
