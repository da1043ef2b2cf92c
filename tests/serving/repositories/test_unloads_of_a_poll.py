"""What one poll may unload: a folder that goes away, many models that go at once, and the person who confirms it."""

import shutil
from pathlib import Path

import httpx
import pytest

from serving.cli.option_values import cap
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess, wait_until

POLL = ("--model-control-mode=poll", "--repository-poll-secs=0.1")
NAMES = ("one", "two", "three", "four")


def ready(server: ServerProcess) -> set[str]:
    return {row["name"] for row in server.post("/v2/repository/index", {"ready": True})[1]}


def has_metric(server: ServerProcess, line: str) -> bool:
    return line in httpx.get(server.metrics_url, timeout=60).text


@pytest.mark.long
def test_a_poll_never_unloads_what_a_missing_folder_or_many_deletions_take_away(tmp_path: Path) -> None:
    repository, aside = tmp_path / "models", tmp_path / "aside"
    for name in NAMES:
        onnx_scale(repository, name)
    with ServerProcess([repository], *POLL) as server:
        repository.rename(aside)
        wait_until(lambda: "cannot be listed: No such file" in server.log, what="the trouble in the log")
        assert has_metric(server, f'slipway_repository_listed{{repository="{repository}"}} 0')
        assert ready(server) == set(NAMES)
        aside.rename(repository)
        wait_until(lambda: "answers again" in server.log, what="the folder")

        shutil.rmtree(repository / "one")
        wait_until(lambda: "one" not in ready(server), what="one deleted model")
        for name in ("two", "three"):
            (repository / name).rename(tmp_path / name)
        wait_until(lambda: "2 of 3 models are gone" in server.log, what="the held unloads")
        assert has_metric(server, "slipway_repository_held_models 2")
        assert ready(server) == {"two", "three", "four"}
        assert server.get("/v2/health/ready")[0] == 200

        (tmp_path / "two").rename(repository / "two")
        wait_until(lambda: "three" not in ready(server), what="a deletion within the limit")
        assert server.log.count("loaded 'two'") == 1

        for name in ("two", "four"):
            shutil.rmtree(repository / name)
        wait_until(lambda: has_metric(server, "slipway_repository_held_models 2"), what="the held unloads")
        assert server.post("/v2/slipway/repository/unloads") == (200, {"models": ["four", "two"]})
        wait_until(lambda: not ready(server), what="the confirmed unloads")
        assert has_metric(server, "slipway_repository_held_models 0")


@pytest.mark.parametrize(
    ("text", "total", "allowed"), [("50%", 3, 1), ("20%", 2, 1), ("0%", 9, 0), ("3", 9, 3), ("0", 9, 0)]
)
def test_a_cap_is_a_number_or_a_share_of_at_least_one(text: str, total: int, allowed: int) -> None:
    assert cap(text).of(total) == allowed
    assert str(cap(text)) == text
