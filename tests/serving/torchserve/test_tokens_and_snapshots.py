"""Which tokens open TorchServe's APIs, and the snapshot that a server leaves for its next start."""

import json
import signal
from pathlib import Path

import grpc
import pytest

from repository.torchserve import java_properties
from repository.torchserve.snapshot_files import last_snapshot, prune
from serving.core.errors import PermissionDenied
from serving.torchserve.apis import messages
from serving.torchserve.registry.errors import TorchServeError
from serving.torchserve.registry.tokens import Tokens, TokenType
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

MANAGEMENT = f"/{messages.MANAGEMENT}.ManagementAPIsService"
SLOW = """
import time

class Handler:
    def initialize(self, context):
        time.sleep(600)
"""


def keys(folder: Path) -> dict[str, str]:
    return {name: said["key"] for name, said in json.loads((folder / "key_file.json").read_text()).items()}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_each_api_takes_its_own_key_and_a_new_one_in_its_place(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "noop.mar")
    with TorchServeServer(tmp_path, models=["noop.mar"], tokens=True) as server:
        assert (tmp_path / "key_file.json").stat().st_mode & 0o777 == 0o600
        own = keys(tmp_path)
        assert [len(key) for key in own.values()] == [8, 8, 8]
        refused = server.manage("GET", "/models")
        assert (refused.status, refused.body["type"]) == (400, "InvalidKeyException")
        assert refused.headers["connection"] == "close"
        assert server.manage("GET", "/models", headers=bearer(own["inference"])).status == 400
        assert server.manage("GET", "/models", headers=bearer(own["management"])).status == 200
        assert server.predict("/predictions/noop", b"x", bearer(own["management"])).status == 400
        assert server.predict("/predictions/noop", b"x", bearer(own["inference"])).body == b"x"
        assert server.ask("torchserve_inference", "GET", "/ping").status == 400
        assert server.ask("torchserve_metrics", "GET", "/metrics").status == 200
        with grpc.insecure_channel(server.addresses["torchserve_grpc_management"]) as channel:
            listing = channel.unary_unary(f"{MANAGEMENT}/ListModels", response_deserializer=bytes)
            with pytest.raises(grpc.RpcError) as caught:
                listing(b"", timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            metadata = (("authorization", f"Bearer {own['management']}"),)
            assert b"noop.mar" in listing(b"", metadata=metadata, timeout=PATIENCE_S)
        assert server.manage("GET", "/token?type=management", headers=bearer(own["management"])).status == 400
        assert server.manage("GET", "/token?type=API", headers=bearer(own["API"])).status == 400
        renewed = server.manage("GET", "/token?type=management", headers=bearer(own["API"]))
        assert renewed.status == 200
        assert not any(key in str(renewed) for key in keys(tmp_path).values())
        assert server.manage("GET", "/models", headers=bearer(own["management"])).status == 400
        assert server.manage("GET", "/models", headers=bearer(keys(tmp_path)["management"])).status == 200
        assert not any(key in server.log for key in [*own.values(), *keys(tmp_path).values()])
        server.terminate()
        assert not (tmp_path / "key_file.json").exists()


def test_a_key_expires(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, expiration_min=0.0001)
    key = {"authorization": f"Bearer {keys(tmp_path)['management']}"}

    def expired() -> bool:
        try:
            tokens.check(key, TokenType.MANAGEMENT)
        except PermissionDenied:
            return True
        return False

    wait_until(expired)
    tokens.check({"authorization": f"Bearer {keys(tmp_path)['API']}"}, TokenType.API)
    tokens.close()
    assert list(tmp_path.iterdir()) == []


def test_a_key_stays_where_its_file_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    tokens = Tokens(folder, 60)
    key = json.loads(tokens.path.read_text())["inference"]["key"]
    folder.rename(tmp_path / "moved")
    with pytest.raises(TorchServeError, match=r"key_file\.json cannot be written, so the key was not changed"):
        tokens.renew(TokenType.INFERENCE)
    tokens.check({"authorization": f"Bearer {key}"}, TokenType.INFERENCE)


def test_the_newest_snapshots_are_kept_with_that_of_the_start(tmp_path: Path) -> None:
    names = [f"2026010100000000{number}-snapshot.cfg" for number in range(9)]
    names[0], names[2] = (name.replace("snapshot", "startup") for name in (names[0], names[2]))
    for name in [*names, "mine.cfg"]:
        (tmp_path / name).touch()
    prune(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [names[2], *names[6:], "mine.cfg"]


def test_a_server_that_was_killed_in_a_registration_starts_again_with_what_was_registered(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        archive(tmp_path / "store" / f"noop-{version}.mar", "noop", version=version)
    archive(tmp_path / "store" / "slow.mar", handler=SLOW)
    with TorchServeServer(tmp_path, models=["noop=noop-1.0.mar"]) as server:
        asked = "/models?url=noop-2.0.mar&initial_workers=2&batch_size=4&max_batch_delay=50"
        assert server.manage("POST", asked).status == 200
        assert server.manage("PUT", "/models/noop/2.0/set-default").status == 200
        assert server.manage("POST", "/models?url=slow.mar&initial_workers=1&synchronous=false").status == 202
        before = server.manage("GET", "/models/noop/all").body
        server.signal(signal.SIGKILL, PATIENCE_S)
    snapshot = last_snapshot(tmp_path / "logs")
    assert snapshot is not None
    assert "slow" not in java_properties.parse(snapshot.read_text())["model_snapshot"]
    with TorchServeServer(tmp_path, f"--ts-config={snapshot}") as server:
        after = server.manage("GET", "/models/noop/all").body
        kept = ("modelVersion", "modelUrl", "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
        assert [[row[key] for key in kept] for row in after] == [[row[key] for key in kept] for row in before]
        assert server.manage("GET", "/models/noop").body[0]["modelVersion"] == "2.0"
        assert [len(row["workers"]) for row in after] == [1, 2]
        assert server.manage("GET", "/models").body["models"] == [{"modelName": "noop", "modelUrl": "noop-2.0.mar"}]
        server.terminate()
    shutdown = last_snapshot(tmp_path / "logs")
    assert shutdown is not None
    assert shutdown.name.endswith("-shutdown.cfg")
    (tmp_path / "store" / "noop-2.0.mar").unlink()
    with TorchServeServer(tmp_path, f"--ts-config={shutdown}", wait="") as server:
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 1
        assert "the archive 'noop-2.0.mar' of model 'noop' version 2.0 is not in the model store" in server.log
    assert last_snapshot(tmp_path / "logs") == shutdown
