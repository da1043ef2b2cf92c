"""A server that is killed while it captures loses only requests that were not yet in a file, and tells how many."""

from pathlib import Path

import httpx
import pytest

from repository.core.captures import capture_files, counters_path, read_counts
from tests.serving.captures.wanted import captured, counts, numbers, want
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

pytestmark = pytest.mark.long


@pytest.mark.parametrize("flags", [(), ("--frontend-workers=2",)], ids=["one process", "workers"])
def test_every_answered_request_is_in_a_file_or_counted(tmp_path: Path, flags: tuple[str, ...]) -> None:
    model_factory.onnx_scale(tmp_path / "models")
    folder = want(tmp_path / "captures" / "c1", "scale")
    more_flags = (f"--capture-folder={tmp_path / 'captures'}", *flags)
    answered: list[str] = []
    try:
        for _ in range(2):
            with ServerProcess(tmp_path / "models", *more_flags) as server:
                with httpx.Client(base_url=server.http_url) as client:
                    followed(client, folder)
                    before = written = sum(file.rows for file in capture_files(folder))
                    while written == before:  # until a file of this turn is whole
                        answered += [ask(client, f"r{len(answered) + more}") for more in range(20)]
                        written = sum(file.rows for file in capture_files(folder))
                    answered += [ask(client, f"r{len(answered) + more}") for more in range(30)]
                server.kill()
        with ServerProcess(tmp_path / "models", *more_flags):
            want(folder, "scale", stopped=True)
            wait_until(lambda: counts(folder)["ended"] == "stopped")
        known = counts(folder)
    finally:
        counters_path(folder).unlink(missing_ok=True)
    ids = [name for rows in captured(folder) for name in rows.ids if name]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(answered)
    assert len(answered) - len(ids) <= known["lost"]
    found = numbers(folder)
    assert found == sorted(set(found))
    assert known["waiting"] == 0
    assert known["chosen"] == known["written"] + known["lost"] == len(found) + known["lost"]


def followed(client: httpx.Client, folder: Path) -> None:
    """Return once the running server captures requests, which are not among those that the test counts."""
    before = chosen(folder)
    wait_until(lambda: ask(client, "") == "" and chosen(folder) > before)


def chosen(folder: Path) -> int:
    found = read_counts(folder)
    return 0 if found is None else found["chosen"]


def ask(client: httpx.Client, name: str) -> str:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    answer = client.post("/v2/models/scale/infer", json={"id": name, "inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    return name
