"""Figures of a stable arm outlive the server: by rollout and arms, written off the loop, rarely, within bounds."""

import asyncio
import json
from pathlib import Path

import pytest

from serving.traffic import stable_memory
from serving.traffic.figures import Compared, Window
from serving.traffic.stable_memory import Known, Memory, StableMemory

ARMS = "version 1", "version 2"
WINDOW = Window(500, 1, {3: 499}, 10**9, {5: 1}, 2, 503, 1)
MEMORY = Memory("r-1", ARMS, Known(WINDOW, 300.0, "10:00:00 UTC"), Known(Compared(400, 3), 60.0, "10:00:01 UTC"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.json"


async def written(memory: StableMemory, ticks: int = 1) -> None:
    for _ in range(ticks):
        memory.tick(asyncio.get_running_loop())
    if memory._writing is not None:
        await memory._writing


def test_another_process_knows_it_of_the_same_arms_of_the_same_rollout(path: Path) -> None:
    async def story() -> None:
        memory = StableMemory(path)
        memory.note("chat", MEMORY)
        await written(memory)
        again = StableMemory(path)
        assert again.of("chat", "r-1", ARMS) == MEMORY
        assert again.of("chat", "r-2", ARMS) is None
        assert again.of("chat", "r-1", ("version 3", "version 2")) is None
        assert again.of("other", "r-1", ARMS) is None
        again.forget("chat")
        await again.close()
        assert StableMemory(path).of("chat", "r-1", ARMS) is None

    asyncio.run(story())


def test_it_is_written_once_a_minute_and_at_once_where_no_more_may_come(path: Path) -> None:
    async def story() -> None:
        memory, file = StableMemory(path), path.with_name("traffic.stable.json")
        memory.note("chat", MEMORY)
        await written(memory)
        first = file.read_bytes()
        later = MEMORY._replace(stable=Known(WINDOW._replace(requests=600), 300.0, "10:00:02 UTC"))
        memory.note("chat", later)
        await written(memory, ticks=30)
        assert file.read_bytes() == first
        memory.note("chat", later, at_once=True)
        await written(memory)
        assert StableMemory(path).of("chat", "r-1", ARMS) == later

    asyncio.run(story())


def test_figures_that_a_full_disk_refused_are_written_when_there_is_room(path: Path) -> None:
    """At 100 % nothing newer comes that would be a reason to write again."""

    async def story() -> None:
        memory, file = StableMemory(path), path.with_name("traffic.stable.json")
        file.mkdir()  # nothing can be written over it
        memory.note("chat", MEMORY, at_once=True)
        await written(memory)
        file.rmdir()
        await memory.close()
        assert StableMemory(path).of("chat", "r-1", ARMS) == MEMORY

    asyncio.run(story())


def test_it_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(stable_memory, "MOST_MODELS", 3)
        memory = StableMemory(path)
        for number in range(10):
            memory.note(f"model{number}", MEMORY)
        await memory.close()
        assert list(json.loads(path.with_name("traffic.stable.json").read_bytes())) == ["model7", "model8", "model9"]

    asyncio.run(story())


def test_servers_that_share_a_file_keep_each_others_figures(path: Path) -> None:
    """At 100 % a server has nothing newer to write: what another one wrote over would be gone."""

    async def story() -> None:
        one, other = StableMemory(path), StableMemory(path)
        one.note("chat", MEMORY)
        await written(one)
        other.note("vision", MEMORY)
        await written(other)
        again = StableMemory(path)
        assert again.of("chat", "r-1", ARMS) == again.of("vision", "r-1", ARMS) == MEMORY
        newer = MEMORY._replace(rollout="r-2")
        other.note("chat", newer)
        await other.close()
        one.forget("chat")
        await one.close()
        assert StableMemory(path).of("chat", "r-2", ARMS) == newer, "another rollout by now"
        other.forget("chat")
        await other.close()
        assert StableMemory(path).of("chat", "r-2", ARMS) is None

    asyncio.run(story())


@pytest.mark.parametrize("latency", ['{"448": 1}', '{"-1": 1}', '{"a": 1}', "[]", "null"])
def test_a_damaged_row_is_passed_over_and_the_others_are_known(
    path: Path, latency: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket that there is not would keep the guardrail from being judged for as long as the file is there."""

    async def story() -> None:
        memory, file = StableMemory(path), path.with_name("traffic.stable.json")
        memory.note("chat", MEMORY)
        memory.note("vision", MEMORY)
        await memory.close()
        file.write_text(file.read_text().replace('{"3": 499}', latency, 1))

    asyncio.run(story())
    again = StableMemory(path)
    assert again.of("chat", "r-1", ARMS) is None
    assert again.of("vision", "r-1", ARMS) == MEMORY
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"chat": 1}', '{"chat": {"rollout": "r-1", "arms": ["a", "b"]}}'])
def test_a_damaged_file_is_reported_and_remembers_nothing(
    path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.with_name("traffic.stable.json").write_text(content)
    assert StableMemory(path).of("chat", "r-1", ARMS) is None
    assert len(caplog.records) == 1


def test_without_a_path_it_lasts_as_long_as_the_process() -> None:
    memory = StableMemory(None)
    memory.note("chat", MEMORY)
    assert memory.of("chat", "r-1", ARMS) == MEMORY
