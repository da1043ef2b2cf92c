"""Captures of a server: what is kept, masked and bounded, and that nothing follows requests without one."""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repository.core.captures import WANTED, capture_files, counters_path, read_counts
from repository.files.storage import write_atomic
from serving.captures import capture as capture_module
from serving.captures import captures as captures_module
from serving.captures import intake as intake_module
from serving.captures.intake import Intake
from serving.core.errors import ServingError
from serving.core.response import InferenceResponse
from serving.server.inference_server import InferenceServer
from tests.serving.captures.wanted import captured, counts, numbers, want
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.support import model_factory

pytestmark = [pytest.mark.asyncio, pytest.mark.long]


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, name in (
        (captures_module, "LOOK_S"), (captures_module, "WORK_S"), (capture_module, "FLUSH_S"), (capture_module, "TELL_S")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.02)
    yield
    for name in ("a", "b", "c", "c1", "c2", "d"):
        counters_path(tmp_path / "captures" / name).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def server_of(tmp_path: Path, **options: Any) -> AsyncIterator[InferenceServer]:
    models = tmp_path / "models"
    if not models.exists():
        model_factory.onnx_scale(models)
    async with core(models, load_model=("scale",), capture_folder=tmp_path / "captures", **options) as server:
        yield server


def intakes(server: InferenceServer, model: str = "scale") -> list[Intake]:
    chooser = server._captures.choosers.get(model)
    return chooser.intakes if chooser is not None else []


async def begun(server: InferenceServer, model: str = "scale", count: int = 1) -> None:
    await until(lambda: len(intakes(server, model)) == count)


async def ask(server: InferenceServer, value: float = 1.0, width: int = 1, **fields: Any) -> object:
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    inputs = {"INPUT0": np.full((1, width), value, np.float32)}
    request = in_flight("scale", inputs, lambda answer, final: answered.set_result(answer), **fields)
    try:
        server.infer(request, "http")
    except ServingError as error:
        return error
    return await answered


async def written(folder: Path, count: int) -> None:
    await until(lambda: sum(file.rows for file in capture_files(folder)) >= count)


async def test_requests_are_kept_with_their_answers(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    async with server_of(tmp_path) as server:
        await begun(server)
        for number in range(3):
            await ask(server, number, id=f"r{number}")
        await written(folder, 3)
    rows = captured(folder)
    assert [name for one in rows for name in one.ids] == ["r0", "r1", "r2"]
    first = rows[0]
    assert (first.inputs["INPUT0"].tensor(0), first.outputs["OUTPUT0"].tensor(0)) == ([[0.0]], [[0.0]])
    assert (first.versions[0], first.arms[0], first.errors[0]) == (1, "", None)
    assert first.latency_us[0] > 0
    found = counts(folder)
    assert (found["chosen"], found["written"], found["waiting"], found["dropped"], found["lost"]) == (3, 3, 0, {}, 0)
    assert all(file.path.stat().st_mode & 0o77 == 0 for file in capture_files(folder))


async def test_without_a_capture_no_request_is_followed(tmp_path: Path) -> None:
    async with server_of(tmp_path) as server:
        assert not server._observed
        folder = want(tmp_path / "captures" / "c1", "another")
        await begun(server, "another")
        assert server._observed
        request = in_flight("scale", {"INPUT0": np.ones((1, 1), np.float32)})
        server.infer(request, "http")
        assert request.observers == ()
        want(folder, "another", stopped=True)
        await until(lambda: not server._observed)
    assert counts(folder)["ended"] == "stopped"
    assert not counters_path(folder).exists()


async def test_a_model_s_own_requests_are_not_kept(tmp_path: Path) -> None:
    want(tmp_path / "captures" / "c1", "scale")
    async with server_of(tmp_path) as server:
        await begun(server)
        request = in_flight("scale", {"INPUT0": np.ones((1, 1), np.float32)})
        server.infer(request)
        assert request.observers == ()


async def test_only_errors_are_kept_if_that_is_wanted(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale", errors_only=True)
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
        assert isinstance(await ask(server, width=3), ServingError)
        await written(folder, 1)
    [rows] = captured(folder)
    assert counts(folder)["chosen"] == 1
    assert rows.errors[0] is not None
    assert rows.outputs == {}
    assert rows.inputs["INPUT0"].shapes.tolist() == [1, 3]


async def test_tensors_are_masked_before_they_are_written(tmp_path: Path) -> None:
    masks = {"inputs": {"INPUT0": {"rule": "drop"}}, "outputs": {"OUTPUT0": {"rule": "round", "step": 0.5}}}
    folder = want(tmp_path / "captures" / "c1", "scale", **masks)
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server, 0.4)
        await written(folder, 1)
    [rows] = captured(folder)
    assert rows.inputs["INPUT0"].tensor(0) is None
    assert rows.outputs["OUTPUT0"].tensor(0) == [[1.0]]


async def test_a_capture_ends_when_its_bytes_are_used(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale", bytes=1)
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
        await until(lambda: "scale" not in server._captures.choosers)
        await ask(server)
    assert counts(folder)["ended"] == "bytes"
    assert numbers(folder) == [1]


async def test_a_capture_ends_at_its_time(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale", until=1.0)
    async with server_of(tmp_path) as server:
        await until(lambda: (found := read_counts(folder)) is not None and found["ended"] == "time")
        await until(lambda: not server._captures.choosers)


async def test_a_capture_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    for _ in range(2):
        async with server_of(tmp_path) as server:
            await begun(server)
            await ask(server)
            await ask(server)
    assert numbers(folder) == [1, 2, 3, 4]
    assert (counts(folder)["written"], counts(folder)["lost"]) == (4, 0)


async def test_requests_beyond_the_queue_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    monkeypatch.setattr(capture_module, "FLUSH_S", 3600.0)
    monkeypatch.setattr(intake_module, "MAX_WAITING", 2)
    monkeypatch.setattr(intake_module, "MAX_REQUEST_BYTES", 100)
    async with server_of(tmp_path) as server:
        await begun(server)
        assert isinstance(await ask(server, width=30), ServingError)
        for _ in range(5):
            await ask(server)
    assert numbers(folder) == [2, 3]
    assert counts(folder)["dropped"] == {"large": 1, "full": 3}
    assert counts(folder)["chosen"] == 6


async def test_a_disk_that_fails_drops_and_counts_and_the_capture_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale", reserve=1 << 62)
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
        await until(lambda: (found := read_counts(folder)) is not None and found["dropped"] == {"storage": 1})
        assert counts(folder)["trouble"] == "the disk is nearly full"
        want(folder, "scale", reserve=0)
        await until(lambda: intakes(server)[0].wanted["reserve"] == 0)
        await ask(server)
        await written(folder, 1)
    assert numbers(folder) == [2]
    assert counts(folder)["trouble"] == ""


async def test_storage_that_hangs_delays_no_client_and_every_request_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    hangs, goes_on = threading.Event(), threading.Event()

    def hanging_write(*arguments: Any, **named: Any) -> None:  # a double of a disk that does not answer
        hangs.set()
        goes_on.wait()
        write_atomic(*arguments, **named)

    monkeypatch.setattr(intake_module, "MAX_WAITING", 5)
    async with server_of(tmp_path) as server:
        await begun(server)
        monkeypatch.setattr(capture_module, "write_atomic", hanging_write)
        try:
            await ask(server)
            await until(hangs.is_set)
            for _ in range(20):
                assert isinstance(await ask(server), InferenceResponse)
        finally:
            goes_on.set()
        await written(folder, 5)
    found = counts(folder)
    assert found["chosen"] == 21 == found["written"] + found["dropped"]["full"]
    assert (found["waiting"], found["lost"]) == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_drops_and_counts_and_the_capture_recovers(tmp_path: Path) -> None:
    disk = tmp_path / "captures"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine allows no mounts")
    try:
        folder = want(disk / "c1", "scale")
        async with server_of(tmp_path) as server:
            await begun(server)
            await until(lambda: read_counts(folder) is not None)
            with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
                while True:
                    filler.write(bytes(512))
                    filler.flush()
            for _ in range(3):
                assert isinstance(await ask(server), InferenceResponse)
            capture = server._captures._thread._open[folder]  # type: ignore[union-attr]
            await until(lambda: capture._counters.dropped == {"storage": 3})
            (disk / "filler").unlink()
            assert isinstance(await ask(server), InferenceResponse)
            await written(folder, 1)
        found = counts(folder)
        assert (found["chosen"], found["written"], found["dropped"], found["trouble"]) == (4, 1, {"storage": 3}, "")
        assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


async def test_two_captures_of_a_model_go_on_through_a_reload_and_tell_versions_apart(tmp_path: Path) -> None:
    model_factory.onnx_scale(tmp_path / "models")
    both, old = (
        want(tmp_path / "captures" / name, "scale", **more) for name, more in (("c1", {}), ("c2", {"versions": [1]}))
    )
    async with server_of(tmp_path) as server:
        await begun(server, count=2)
        await ask(server)
        model_factory.onnx_scale(tmp_path / "models", version=2)
        await server.load_model("scale")
        await ask(server)
        await written(both, 2)
    assert [version for rows in captured(both) for version in rows.versions.tolist()] == [1, 2]
    assert [version for rows in captured(old) for version in rows.versions.tolist()] == [1]
    assert counts(old)["chosen"] == 1


async def test_a_deleted_capture_stays_deleted(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
        os.rename(folder, folder.with_name(".deleted-c1"))
        await ask(server)
        await until(lambda: not server._captures.choosers)
    assert not folder.exists()
    assert not counters_path(folder).exists()


async def test_a_second_server_leaves_a_capture_to_the_first(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    async with server_of(tmp_path) as first:
        await begun(first)
        async with server_of(tmp_path) as second:
            want(tmp_path / "captures" / "c2", "other")
            await until(lambda: any("other" in server._captures.choosers for server in (first, second)))
            assert "scale" not in second._captures.choosers
            await ask(first)
    assert numbers(folder) == [1]


async def test_counts_of_a_machine_that_was_restarted_are_read_from_the_folder(tmp_path: Path) -> None:
    folder = want(tmp_path / "captures" / "c1", "scale")
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
    counters_path(folder).unlink()
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
    assert numbers(folder) == [1, 2]
    assert counts(folder)["chosen"] == 2


async def test_a_damaged_wish_spoils_no_other_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, content in (("a", b"{"), ("b", b'{"model": "scale"}'), ("c", b"[]")):
        (tmp_path / "captures" / name).mkdir(parents=True)
        (tmp_path / "captures" / name / WANTED).write_bytes(content)
    folder = want(tmp_path / "captures" / "d", "scale")
    async with server_of(tmp_path) as server:
        await begun(server)
        await ask(server)
    assert numbers(folder) == [1]
    assert len([line for line in caplog.messages if line.startswith("opening the capture")]) == 3


async def test_requests_that_come_while_a_file_is_written_wait_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy server's writer would never end: a tiny file for the few requests that came during the last one."""
    loop = asyncio.get_running_loop()
    files_of_rounds: list[int] = []
    write, flush = capture_module.write_atomic, capture_module.Capture._flush

    def busy_flush(of: capture_module.Capture) -> None:
        files_of_rounds.append(0)
        flush(of)

    async with server_of(tmp_path) as server:

        def busy_write(path: Path, content: bytes, mode: int = 0o666) -> None:
            if path.suffix == ".parquet" and sum(files_of_rounds) < 5:
                asyncio.run_coroutine_threadsafe(ask(server), loop).result(10)
            files_of_rounds[-1] += path.suffix == ".parquet"
            write(path, content, mode=mode)

        folder = want(tmp_path / "captures" / "c", "scale")
        await begun(server)
        monkeypatch.setattr(capture_module.Capture, "_flush", busy_flush)
        monkeypatch.setattr(capture_module, "write_atomic", busy_write)
        await ask(server)
        await written(folder, 6)
    assert files_of_rounds[:6] == [1] * 6
