"""Models on real second servers: KServe V2 over HTTP and gRPC, TorchServe's predictions, and TLS."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repository.config.traffic import Remote
from serving.core.datatypes import DATATYPES
from serving.core.errors import Code, ServingError
from serving.core.output_target import OutputRule, OutputTarget
from tests.serving.gate import until
from tests.serving.traffic.remotes.asking import ask, config, remote_model
from tests.serving.traffic.remotes.services import Received, service
from tests.support.certificates import Authority
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

pytestmark = pytest.mark.asyncio

VALUES: dict[str, Any] = {
    "BOOL": [[True, False], [False, True]],
    "BYTES": [[b"a", b"b c"], [b"", "größe".encode()]],
}


def identity(datatype: str, dims: int = -1) -> Any:
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return config(
        f'name: "here" max_batch_size: 8 input {{ name: "INPUT0" data_type: {kind} dims: {dims} }} '
        f'output {{ name: "OUTPUT0" data_type: {kind} dims: {dims} }}'
    )


def tensor(datatype: str) -> Any:
    return np.array(VALUES.get(datatype, [[1, 2], [3, 100]]), DATATYPES[datatype].dtype)


def remote_of(server: ServerProcess, protocol: str, model: str, version: str = "") -> Remote:
    address = server.grpc if protocol == "v2-grpc" else server.http
    return Remote(f"http://{address}", protocol, model, version)


@pytest.mark.parametrize("protocol", ["v2", "v2-grpc"])
async def test_every_datatype_comes_back_as_it_went(http_server: ServerProcess, tmp_path: Path, protocol: str) -> None:
    for datatype in DATATYPES:
        name = f"identity_{datatype.lower()}"
        model = remote_model(tmp_path, remote_of(http_server, protocol, name), identity(datatype))
        given = tensor(datatype)
        answer = await ask(model, {"INPUT0": given}, id="r-1", requested=("OUTPUT0",))
        assert answer.outputs["OUTPUT0"].dtype == given.dtype, datatype
        assert answer.outputs["OUTPUT0"].tolist() == given.tolist(), datatype
        assert (answer.id, answer.model_version, answer.model_name) == ("r-1", 1, "here")
        await model.drain()


@pytest.mark.parametrize("protocol", ["v2", "v2-grpc"])
async def test_a_missing_model_and_one_with_other_tensors_have_different_errors(
    http_server: ServerProcess, tmp_path: Path, protocol: str
) -> None:
    given = {"INPUT0": tensor("FP32")}
    missing = remote_model(tmp_path, remote_of(http_server, protocol, "nobody"), identity("FP32"))
    with pytest.raises(ServingError, match="nobody") as caught:
        await ask(missing, given)
    assert caught.value.code is Code.UNAVAILABLE
    await missing.drain()
    other = remote_model(tmp_path, remote_of(http_server, protocol, "identity_fp64"), identity("FP32"))
    with pytest.raises(ServingError, match="the model expects FP64") as caught:
        await ask(other, given)
    assert caught.value.code is Code.INVALID_ARG
    await other.drain()
    wider = remote_model(tmp_path, remote_of(http_server, protocol, "identity_fp32"), identity("FP32", 3))
    with pytest.raises(ServingError, match=r"Expected \[-1, 3\], got \[2, 2\]"):
        await ask(wider, given)
    await wider.drain()


async def test_classes_are_made_here_of_another_servers_outputs(http_server: ServerProcess, tmp_path: Path) -> None:
    model = remote_model(tmp_path, remote_of(http_server, "v2", "identity_fp32"), identity("FP32"))
    targets = {"OUTPUT0": OutputTarget(OutputRule(classes=1))}
    answer = await ask(model, {"INPUT0": np.array([[0.5, 2.0]], np.float32)}, output_targets=targets)
    assert answer.outputs["OUTPUT0"].tolist() == [[b"2.000000:1"]]
    await model.drain()


async def test_a_v2_server_without_the_binary_extension_is_asked_in_json(tmp_path: Path) -> None:
    def respond(received: Received) -> Any:
        if received.path == "/v2":
            return {"name": "other", "version": "1", "extensions": []}
        one = received.json["inputs"][0]
        return {"model_name": "m", "model_version": "v7", "outputs": [{**one, "name": "OUTPUT0"}]}

    with service(respond) as other:
        model = remote_model(tmp_path, Remote(other.url, "v2", "m"), identity("INT64"))
        answer = await ask(model, {"INPUT0": np.array([[1, -(2**62)]])})
        assert answer.outputs["OUTPUT0"].tolist() == [[1, -(2**62)]]
        assert answer.model_version == 0  # "v7" is no number
        assert [one.path for one in other.received] == ["/v2", "/v2/models/m/infer"]
        await model.drain()


async def test_values_that_json_can_carry_come_back_and_infinity_does_not_become_nan(tmp_path: Path) -> None:
    values = {
        "UINT64": [[0, 2**64 - 1]],
        "INT64": [[-(2**63), 2**63 - 1]],
        "FP16": [[1.5, np.nan]],
        "BF16": [[2.5, 3.0]],
    }

    def respond(received: Received) -> Any:
        if received.path == "/v2":
            return 404, {}, b""
        assert received.json["id"]  # KServe's own server answers no request without one
        return {"outputs": [{**received.json["inputs"][0], "name": "OUTPUT0"}]}

    with service(respond) as other:
        for datatype, value in values.items():
            model = remote_model(tmp_path, Remote(other.url, "v2", "m"), identity(datatype))
            given = np.array(value, DATATYPES[datatype].dtype)
            answer = await ask(model, {"INPUT0": given})
            assert np.array_equal(answer.outputs["OUTPUT0"], given, equal_nan=datatype == "FP16"), datatype
            await model.drain()
        model = remote_model(tmp_path, Remote(other.url, "v2", "m"), identity("FP32"))
        with pytest.raises(ServingError, match="input 'INPUT0' holds infinite numbers, which"):
            await ask(model, {"INPUT0": np.array([[np.inf]], np.float32)})
        await model.drain()


async def test_requests_of_one_sequence_are_sent_one_after_the_other(tmp_path: Path) -> None:
    going_on = threading.Event()

    def respond(received: Received) -> Any:
        if received.path == "/v2":
            return {"extensions": []}
        if received.json["parameters"]["sequence_start"]:
            going_on.wait(PATIENCE_S)
        return {"outputs": [{**received.json["inputs"][0], "name": "OUTPUT0"}]}

    with service(respond) as other:
        model = remote_model(tmp_path, Remote(other.url, "v2"), identity("INT32"))
        given = {"INPUT0": tensor("INT32")}
        first = asyncio.ensure_future(ask(model, given, sequence_id=7, sequence_start=True))
        rest = [asyncio.ensure_future(ask(model, given, sequence_id=7)) for _ in range(3)]
        await ask(model, given, sequence_id=8)  # another one does not wait for it

        def asked() -> list[int]:
            return sorted(one.json["parameters"]["sequence_id"] for one in other.received if one.body)

        await until(lambda: len(asked()) == 2, "the first request of either sequence")
        assert asked() == [7, 8]
        going_on.set()
        await asyncio.gather(first, *rest)
        assert model.in_flight == 0
        await model.drain()


async def test_an_answer_that_is_no_v2_is_one_sentence(tmp_path: Path) -> None:
    odd = [
        b"[]",
        b'{"outputs": 3}',
        b'{"outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, -2], "data": [1]}]}',
        b'{"outputs": [{"name": "OUTPUT0", "datatype": "FP31", "shape": [1, 1], "data": [1]}]}',
        b'{"outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}]}',
        b'{"outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 2], "data": [[1], [1, 2]]}]}',
    ]
    with service(lambda received: (200, {}, odd[max(0, len(other.received) - 2)])) as other:
        model = remote_model(tmp_path, Remote(other.url, "v2"), identity("FP32"))
        for _ in odd:
            with pytest.raises(ServingError, match="something other than outputs of the V2 protocol"):
                await ask(model, {"INPUT0": tensor("FP32")})
        assert other.received[-1].path == "/v2/models/here/infer"  # by the model's own name
        await model.drain()


async def test_a_certificate_is_checked_against_the_listed_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with service(lambda received: {"sum": 1.0}, authority.sign("server")) as other:
        remote = Remote(other.url, "json", request={"x": "$INPUT0"}, response={"OUTPUT0": "sum"})
        trusted = remote_model(tmp_path, remote, identity("FP32"), ca=str(authority.cert))
        answer = await ask(trusted, {"INPUT0": np.array([[1.0]], np.float32)})
        assert answer.outputs["OUTPUT0"].tolist() == [[1.0]]
        await trusted.drain()
        unknown = remote_model(tmp_path, remote, identity("FP32"))
        with pytest.raises(ServingError, match="its certificate is not trusted"):
            await ask(unknown, {"INPUT0": np.array([[1.0]], np.float32)})
        await unknown.drain()


async def test_a_server_may_ask_for_a_certificate_over_both_protocols(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    theirs, ours = authority.sign("server"), authority.sign("client")
    flags = [
        f"--{protocol}-{name}={value}"
        for protocol in ("http", "grpc")
        for name, value in (
            *(("use-ssl", 1), ("use-ssl-mutual", 1), ("server-cert", theirs.cert), ("server-key", theirs.key)),
            ("root-cert", authority.cert),
        )
    ]
    onnx_scale(tmp_path / "models", "here", factor=2.0)
    own = {"cert": str(ours.cert), "key": str(ours.key)}
    with ServerProcess(tmp_path / "models", *flags, wait="") as server:
        wait_until(lambda: "loaded 'here'" in server.log and server.read_addresses())
        for protocol in ("v2", "v2-grpc"):
            address = server.grpc if protocol == "v2-grpc" else server.http
            remote = Remote(f"https://{address}", protocol, "here")
            known = remote_model(tmp_path, remote, identity("FP32"), ca=str(authority.cert), **own)
            answer = await ask(known, {"INPUT0": np.array([[1.0]], np.float32)})
            assert answer.outputs["OUTPUT0"].tolist() == [[2.0]]
            await known.drain()
            for wrong, said in (
                ({"ca": str(authority.cert)}, "closed|there is no connection"),
                ({"ca": str(stranger.cert), **own}, "self.signed certificate"),
            ):
                refused = remote_model(tmp_path, remote, identity("FP32"), **wrong)
                with pytest.raises(ServingError, match=said) as caught:
                    await ask(refused, {"INPUT0": np.array([[1.0]], np.float32)})
                assert caught.value.code is Code.UNAVAILABLE
                await refused.drain()


# -- TorchServe --------------------------------------------------------------------------------------------------------
HANDLER = """
def handle(data, context):
    if data is None:
        return None
    return [describe(row) for row in data]

def describe(row):
    if "body" in row and isinstance(row["body"], list):
        return [2 * one for one in row["body"]]
    if "body" in row and isinstance(row["body"], dict):
        return {"sum": sum(row["body"]["x"])}
    return {name: len(value) for name, value in row.items()}
"""


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeServer]:
    folder = tmp_path_factory.mktemp("torchserve")
    archive(folder / "store" / "twice.mar", handler=HANDLER)
    with TorchServeServer(folder, models=["twice.mar"]) as server:
        yield server


def predictions(server: TorchServeServer, version: str = "") -> Remote:
    return Remote(f"http://{server.addresses['torchserve_inference']}", "torchserve", "twice", version)


async def test_bodies_and_parts_of_torchserves_clients_are_passed_on(
    torchserve: TorchServeServer, tmp_path: Path
) -> None:
    model = remote_model(
        tmp_path,
        predictions(torchserve, "1.0"),
        config(
            'name: "twice" max_batch_size: 4 input { name: "data" data_type: TYPE_STRING dims: -1 } '
            'output { name: "data" data_type: TYPE_STRING dims: 1 }'
        ),
    )
    rows = np.array([[b'{"x": [1, 2]}'], [b"[4, 5]"]], np.object_)
    answer = await ask(model, {"data": rows})
    assert [json.loads(one) for one in answer.outputs["data"].ravel()] == [{"sum": 3}, [8, 10]]
    assert (answer.outputs["data"].shape, answer.model_version) == ((2, 1), 1)
    parts = json.dumps([["image", "application/octet-stream", "a.png"], ['ca"ption', None, None]])
    given = np.array([[b"\xff\xd8", b"abc"]], np.object_)
    answer = await ask(model, {"data": given}, parameters={"torchserve_parts": parts})
    assert json.loads(answer.outputs["data"].item()) == {"image": 2, 'ca"ption': 3}
    await model.drain()


async def test_tensors_go_to_torchserve_as_lists(torchserve: TorchServeServer, tmp_path: Path) -> None:
    model = remote_model(tmp_path, predictions(torchserve), identity("FP32"))
    answer = await ask(model, {"INPUT0": np.array([[1.5, 2.0], [3.0, 4.0]], np.float32)})
    assert answer.outputs["OUTPUT0"].tolist() == [[3.0, 4.0], [6.0, 8.0]]
    await model.drain()
    templates = {"request": {"x": "$INPUT0[row]"}, "response": {"OUTPUT0": "sum"}}
    model = remote_model(tmp_path, dataclasses.replace(predictions(torchserve), **templates), identity("INT32"))
    answer = await ask(model, {"INPUT0": np.array([[1, 2], [3, 4]], np.int32)})
    assert answer.outputs["OUTPUT0"].tolist() == [[3], [7]]
    await model.drain()
