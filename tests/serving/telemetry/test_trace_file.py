"""Trace files under pressure: long ones are written in pieces, slow disks lose traces and not memory, large traces are cut."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.core.response import InferenceResponse
from serving.telemetry.traces import request_trace, trace_file
from serving.telemetry.traces.trace_file import TraceFile
from serving.telemetry.traces.trace_settings import TraceSettings
from tests.serving.requests import in_flight


def settings(path: Path, *changes: tuple[str, str]) -> TraceSettings:
    given = (("triton", "file", str(path)), ("", "rate", "1"), *(("", name, value) for name, value in changes))
    return TraceSettings(given)


def trace(file: TraceFile, number: int, elements: int = 1) -> None:
    """One request from beginning to end, made by no frontend."""
    request = in_flight("m", {"IN": np.zeros(elements, np.float32)}, lambda answer, final: None, id=f"r{number}")
    file.observe(request, "", None)
    request.respond(InferenceResponse("m", 1, request.asked.id, dict(request.inputs)))


def ids(path: Path) -> list[str]:
    return [row["request_id"] for row in json.loads(path.read_text()) if "request_id" in row]


def test_traces_that_wait_too_long_are_written_in_pieces_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MAX_WAITING", 500)
    whole = TraceFile(settings(tmp_path / "whole", ("level", "TIMESTAMPS")))
    numbered = TraceFile(settings(tmp_path / "numbered", ("level", "TIMESTAMPS"), ("count", "20")))
    every = TraceFile(settings(tmp_path / "every", ("level", "TIMESTAMPS"), ("log-frequency", "15")))
    for file in (whole, numbered, every):
        for number in range(20):
            trace(file, number)
        file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["every.0", "every.1", "numbered.0", "whole"]
    everything = [f"r{number}" for number in range(20)]
    assert ids(tmp_path / "whole") == ids(tmp_path / "numbered.0") == everything
    assert ids(tmp_path / "every.0") + ids(tmp_path / "every.1") == everything
    assert len(ids(tmp_path / "every.1")) == 5, "what is left at the end goes to a numbered file too"


def test_a_slow_disk_loses_traces_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Busy:
        def done(self) -> bool:
            return False

    def submit(write: Any, *arguments: Any) -> Busy:
        write(*arguments)
        return Busy()

    monkeypatch.setattr(trace_file, "MAX_WAITING", 1)
    monkeypatch.setattr(trace_file, "MAX_WRITING", 1000)
    file = TraceFile(settings(tmp_path / "trace", ("level", "TIMESTAMPS")))
    monkeypatch.setattr(file._writer._thread, "submit", submit)
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            trace(file, number)
    file.close()
    written = ids(tmp_path / "trace")
    assert 0 < len(written) < 50
    assert written == [f"r{number}" for number in range(len(written))]
    assert ["too slow" in record.message for record in caplog.records] == [True]


def test_tensors_beyond_a_traces_room_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MAX_TENSOR_BYTES", 100)
    file = TraceFile(settings(tmp_path / "trace", ("level", "TENSORS")))
    trace(file, 1, elements=1000)
    file.close()
    head, tensor = json.loads((tmp_path / "trace").read_text())
    assert tensor["activity"] == "TENSOR_QUEUE_INPUT"
    assert head["tensors_left_out"] == 1


@pytest.mark.asyncio
async def test_an_answer_made_of_several_requests_is_sent_once(tmp_path: Path) -> None:
    file = TraceFile(settings(tmp_path / "trace", ("level", "TIMESTAMPS")))
    requests = [in_flight("m", {}, lambda answer, final: None, id=f"r{number}") for number in range(2)]
    for request in requests:
        file.observe(request, "http", None)
        request.respond(InferenceResponse("m", 1, request.asked.id, {}))
        if request is requests[0]:
            await asyncio.sleep(0)  # the other one is answered later
    for request in requests:
        assert request.trace is not None
        request.trace.sending()
        request.trace.sent(lambda: False)
    await asyncio.sleep(0)
    file.close()
    rows = json.loads((tmp_path / "trace").read_text())
    assert [row["request_id"] for row in rows if "request_id" in row] == ["r0", "r1"]
    assert [json.dumps(row).count("HTTP_SEND") for row in rows if "timestamps" in row] == [0, 2]


def test_a_file_that_cannot_be_written_disturbs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = TraceFile(settings(tmp_path / "nowhere" / "trace", ("level", "TIMESTAMPS")))
    trace(file, 1)
    with caplog.at_level(logging.WARNING):
        file.close()
    assert "a trace file cannot be written" in caplog.text
