"""The log of each model: filed apart as the server's output comes, bounded, and read from its end."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.models import Model
from dashboard.shared import model_logs
from dashboard.shared.model_logs import ModelLogs, model_log_path, model_log_tail, model_logs_folder
from repository.core.json_log import json_line
from repository.core.log_line import mark_of
from tests.dashboard.conftest import text_of


@pytest.fixture
def logs(settings: Any, tmp_path: Path) -> Iterator[ModelLogs]:
    settings.LOG_DIR = tmp_path / "logs"
    settings.LOG_DIR.mkdir()
    logs = ModelLogs(model_logs_folder())
    yield logs
    logs.close()


def line(name: str, text: str, version: int = 3, level: str = "INFO") -> str:
    return f"2026-11-30 17:05:00,123 {level} serving.backends{mark_of(name, version)}: {text}\n"


def test_each_model_has_its_own_lines_wherever_the_output_is_cut(logs: ModelLogs):
    output = (
        line("digits", "loaded")
        + "2026-11-30 17:05:00,123 INFO serving: ready\n"
        + line("text", "it says 読む", level="ERROR")
        + "\tTraceback\n\t  in execute\n"
        + "a library's own line\n"
        + line("digits", "done", version=0)
    ).encode()
    for start in range(0, len(output), 7):
        logs.write(output[start : start + 7])
    assert model_log_tail("digits", 10) == [
        "2026-11-30 17:05:00,123 INFO version 3: loaded",
        "2026-11-30 17:05:00,123 INFO done",
    ]
    assert model_log_tail("text", 10) == [
        "2026-11-30 17:05:00,123 ERROR version 3: it says 読む",
        "\tTraceback",
        "\t  in execute",
    ]
    assert model_log_tail("silent", 10) == []


def test_lines_of_json_are_filed_by_model_and_read_as_text(logs: ModelLogs):
    record = logging.makeLogRecord({"created": 0, "levelname": "ERROR", "name": "serving.backends", "msg": "it failed"})
    logs.write(f"{json_line(record, 'server', '')}\n".encode())
    logs.write(f"{json_line(record, 'server', 'Traceback', model='text', version=3)}\n".encode())
    assert model_log_tail("text", 10) == ["1970-01-01T00:00:00.000Z ERROR version 3: it failed", "\tTraceback"]
    assert [path.name for path in model_logs_folder().iterdir()] == ["text.log"]


def test_a_model_that_says_much_keeps_its_newest_lines_and_drowns_no_other(
    logs: ModelLogs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_logs, "LINES_BYTES", 4096)
    logs.write(line("quiet", "once").encode())
    for number in range(1000):
        logs.write(line("loud", f"number {number}").encode())
    assert model_log_tail("quiet", 10)[0].endswith("once")
    newest = model_log_tail("loud", 40)
    assert [text.rsplit(" ", 1)[1] for text in newest] == [str(number) for number in range(960, 1000)]
    assert sum(path.stat().st_size for path in model_logs_folder().glob("loud.log*")) < 3 * 4096


def test_of_too_many_models_the_one_that_was_silent_the_longest_goes(logs: ModelLogs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_logs, "MOST_MODELS", 30)
    for number in range(40):
        logs.write(line(f"model{number}", "loaded").encode())
    files = {path.name for path in model_logs_folder().iterdir()}
    assert len(files) == 30
    assert "model39.log" in files


@pytest.mark.parametrize("name", ["../../etc/passwd", ".hidden", "*"])
def test_a_name_that_no_model_may_have_makes_no_file(logs: ModelLogs, name: str):
    logs.write(f"2026-11-30 17:05:00,123 INFO serving [{name}/3]: out\n".encode())
    assert not model_logs_folder().exists()


def test_a_line_without_an_end_is_not_kept_for_ever(logs: ModelLogs):
    logs.write(line("digits", "x" * 100_000).rstrip("\n").encode())
    assert len(model_log_tail("digits", 1)[0]) > 60_000


def test_the_page_and_rest_show_it(logs: ModelLogs, db: None, as_person: Callable[..., Client], api: APIClient):
    Model.objects.create(name="digits")
    assert "is only" not in text_of(as_person(), "/models/digits/log")
    logs.write((line("digits", "<b>printed</b>") + line("digits", "failed", level="ERROR")).encode())
    page = text_of(as_person(), "/models/digits/log")
    assert "INFO version 3: &lt;b&gt;printed&lt;/b&gt;" in page
    assert 'data-socket="/ws/models/digits/log/"' in page
    assert api.get("/api/v1/models/digits/log").json()["lines"][0].endswith("<b>printed</b>")
    assert len(api.get("/api/v1/models/digits/log", {"lines": 1}).json()["lines"]) == 1
    assert api.get("/api/v1/models/digits/log", {"lines": "many"}).status_code == 400
    assert api.get("/api/v1/models/ghost/log").status_code == 404
    assert model_log_path("digits").stat().st_mode & 0o077 == 0
