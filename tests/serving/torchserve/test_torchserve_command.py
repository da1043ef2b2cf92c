"""TorchServe's own command line: starting, stopping and refusing."""

import os
import re
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from repository.torchserve.properties import InvalidProperties
from serving.torchserve.__main__ import build_parser, forget, remember, server_flags
from tests.support.serving_process import PATIENCE_S, ROOT, descendants, wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import ANY_PORT

COMMAND = str(ROOT / "bin" / "torchserve")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    archive(tmp_path / "store" / "noop.mar")
    (tmp_path / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in ANY_PORT.items()))
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    # Into a file: a server in the background goes on writing there, and a pipe of it would end with the server only.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S * 2,
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read()


def flags(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> list[str]:
    monkeypatch.chdir(folder)
    return server_flags(build_parser().parse_args(arguments), environment)


def test_a_server_starts_in_the_background_answers_and_is_stopped(folder: Path) -> None:
    assert run(folder, "--start", "--foreground") == (1, "Missing mandatory parameter --model-store\n")
    start = ("--start", "--model-store", "store", "--models", "own=noop.mar", "--disable-token-auth", "--ncs")
    status, said = run(folder, *start)
    try:
        assert status == 0, said
        assert "Model server started." in said  # for which scripts wait, and containers show the log
        inference = re.findall(r"listens on (127\.0\.0\.1:\d+),", said)[0]
        raw = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"http://{inference}/predictions/own", b"x", raw)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            assert response.read() == b"x"
        assert run(folder, *start) == (
            1,
            "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n",
        )
    finally:
        assert run(folder, "--stop") == (0, "TorchServe has stopped.\n")
    assert run(folder, "--stop") == (0, "TorchServe is not currently running.\n")
    assert list((folder / "tmp").iterdir()) == []
    assert "own" in (folder / "logs" / "ts_log.log").read_text()


def test_a_server_in_the_foreground_ends_with_its_signal(folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    command = [COMMAND, "--model-store", "store", "--foreground", "--ncs", "--models", "all"]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE) as process:
        try:
            wait_until(
                lambda: (folder / "key_file.json").exists() and descendants(process.pid), what="keys, and a worker"
            )
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        assert process.returncode == 0, log.decode()
    assert not (folder / "key_file.json").exists()


def test_a_server_that_stop_will_not_find_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    remember(123)
    forget()
    assert "--stop will not find this server, end it by its process id 123: No such file" in capsys.readouterr().out


def test_a_failed_start_is_reported(folder: Path) -> None:
    (folder / "config.properties").write_text("inference_address=nowhere\n")
    status, said = run(folder, "--start", "--model-store", "store")
    assert status == 1
    assert "inference_address: expected http://<host>:<port>" in said
    assert run(folder, "--stop") == (0, "TorchServe is not currently running.\n")


def test_the_configuration_is_the_named_one_else_the_last_snapshot_else_that_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("--model-store", "store")
    (folder / "other.properties").write_text("model_store=store\n")
    assert "--ts-config=config.properties" in flags(folder, monkeypatch, *store)
    snapshots = folder / "logs" / "config"
    snapshots.mkdir(parents=True)
    for name in ("20260101000000000-startup.cfg", "20260102000000000-shutdown.cfg", ".x.tmp"):
        (snapshots / name).write_text('model_snapshot={"models": {}}\n')
    for name, damaged in (
        ("20260103000000000-snapshot.cfg", "model_snapshot={"),
        ("20260104000000000-snapshot.cfg", ""),
    ):
        (snapshots / name).write_text(damaged)
    last = "--ts-config=logs/config/20260102000000000-shutdown.cfg"
    assert last in flags(folder, monkeypatch, *store)
    assert "--ts-config=config.properties" in flags(folder, monkeypatch, *store, "--ncs")
    named = ("--ts-config", "other.properties")
    assert "--ts-config=other.properties" in flags(folder, monkeypatch, *named)
    found = flags(folder, monkeypatch, *store, TS_CONFIG_FILE="other.properties")
    assert "--ts-config=other.properties" in found


def test_a_start_from_damaged_snapshots_alone_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = folder / "logs" / "config"
    snapshots.mkdir(parents=True)
    (snapshots / "20260101000000000-startup.cfg").write_bytes(b"\0\xff")
    with pytest.raises(InvalidProperties, match=r"is damaged: .*, and there is none before it; --ncs starts without"):
        flags(folder, monkeypatch, "--model-store", "store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model-store", "none"), "--model-store directory not found: none"),
        (("--ts-config", "none"), "--ts-config file not found: none"),
        (("--model-store", "store", "--workflow-store", "none"), "--workflow-store directory not found: none"),
        (("--model-store", "store", "--log-config", "none"), "--log-config file not found: none"),
    ],
)
def test_a_missing_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidProperties, match=re.escape(message)):
        flags(folder, monkeypatch, *arguments)
