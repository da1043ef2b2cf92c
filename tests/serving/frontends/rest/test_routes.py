"""Every route of the HTTP frontend but inference answers as Triton's does."""

import json
from pathlib import Path

import pytest

from serving.frontends.http_server import ROUTES
from tests.serving.frontends.raw_http import RawClient, build
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess


def test_health_routes_answer_with_an_empty_body(raw: RawClient) -> None:
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/add_sub/ready",
        "/v2/models/add_sub/versions/1/ready",
    ):
        answer = raw.request("GET", path)
        assert (answer.status, answer.body) == (200, b"")


def test_an_unknown_model_or_version_is_not_ready(raw: RawClient) -> None:
    assert raw.request("GET", "/v2/models/nope/ready").status == 400
    assert raw.request("GET", "/v2/models/add_sub/versions/9/ready").status == 400


def test_server_metadata_names_the_extensions(raw: RawClient) -> None:
    metadata = raw.request("GET", "/v2").json
    assert metadata["name"] == "slipway"
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(metadata["extensions"])


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_model_metadata_has_numbers_for_shapes(raw: RawClient, version: str) -> None:
    metadata = raw.request("GET", f"/v2/models/add_sub{version}").json
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}
    assert metadata["versions"] == ["1"]
    assert metadata["platform"] == "onnxruntime_onnx"


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_model_config_is_the_completed_configuration(raw: RawClient, version: str) -> None:
    config = raw.request("GET", f"/v2/models/add_sub{version}/config").json
    assert config["max_batch_size"] == 8
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [4]
    assert config["backend"] == "onnxruntime"


@pytest.mark.parametrize(
    "path", ["/v2/models/stats", "/v2/models/add_sub/stats", "/v2/models/add_sub/versions/1/stats"]
)
def test_statistics_have_every_field_even_before_the_first_request(raw: RawClient, path: str) -> None:
    rows = raw.request("GET", path).json["model_stats"]
    row = next(row for row in rows if row["name"] == "add_sub")
    assert row["version"] == "1"
    assert set(row["inference_stats"]) == {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    }  # fmt: skip
    assert all(type(value["ns"]) is int for value in row["inference_stats"].values())


def test_the_repository_index_lists_every_model(raw: RawClient) -> None:
    for body in (b"", b"{}", b'{"ready": true}'):
        index = raw.request("POST", "/v2/repository/index", body).json
        [row] = [row for row in index if row["name"] == "add_sub"]
        assert row == {
            "name": "add_sub", "version": "1", "state": "READY", "reason": "", "condition": "", "failed": False
        }  # fmt: skip


def test_a_model_is_loaded_and_unloaded(http_server: ServerProcess, http_models: Path, raw: RawClient) -> None:
    onnx_scale(http_models, "added_later")
    assert raw.request("GET", "/v2/models/added_later").status == 404
    loaded = raw.request("POST", "/v2/repository/models/added_later/load")
    assert (loaded.status, loaded.json["release"]) == (200, None)
    assert [step["step"] for step in loaded.json["steps"]] == ["check", "memory", "load", "warm", "switch", "drain"]
    assert raw.request("GET", "/v2/models/added_later").status == 200
    unloaded = raw.request(
        "POST", "/v2/repository/models/added_later/unload", b'{"parameters": {"unload_dependents": true}}'
    )
    assert (unloaded.status, unloaded.body) == (200, b"")
    assert raw.request("GET", "/v2/models/added_later/ready").status == 400


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v2/repository/index", b'{"ready": "yes"}', "expected a boolean"),
        ("/v2/repository/index", b"[]", "JSON object"),
        ("/v2/repository/index", b"{", "failed to parse"),
        ("/v2/repository/models/add_sub/load", b'{"parameters": []}', "JSON object"),
        ("/v2/repository/models/add_sub/load", b'{"parameters": {"config": 1}}', "must be a string"),
        ("/v2/repository/models/add_sub/load", b'{"parameters": {"colour": "red"}}', "unrecognised"),
        ("/v2/repository/models/add_sub/load", b'{"parameters": {"file:1/model.onnx": "***"}}', "base64"),
        ("/v2/repository/models/add_sub/unload", b'{"parameters": {"unload_dependents": 1}}', "must be a boolean"),
    ],
)
def test_a_malformed_repository_request_is_refused(raw: RawClient, path: str, body: bytes, said: str) -> None:
    answer = raw.request("POST", path, body)
    assert answer.status == 400
    assert said in answer.json["error"]


def test_another_repository_than_the_default_is_not_supported(raw: RawClient) -> None:
    assert raw.request("POST", "/v2/repository/other/index").status == 501


def test_loading_an_unknown_model_says_so(raw: RawClient) -> None:
    answer = raw.request("POST", "/v2/repository/models/nope/load")
    assert answer.status in (400, 404)
    assert "nope" in answer.json["error"]


def test_an_unknown_path_is_404_and_the_connection_goes_on(raw: RawClient) -> None:
    for path in ("/", "/v3", "/v2/models", "/v2/models/add_sub/versions", "/v2/models/add_sub/infer/more"):
        answer = raw.request("GET", path)
        assert answer.status == 404
        assert "error" in answer.json


def test_a_wrong_method_is_405_and_names_the_right_ones(raw: RawClient) -> None:
    answer = raw.request("POST", "/v2/health/live", b"{}")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert raw.request("GET", "/v2/models/add_sub/infer").status == 405


def test_head_answers_as_get_without_the_body(raw: RawClient) -> None:
    answer = raw.request("HEAD", "/v2")
    assert answer.status == 200
    assert int(answer.headers["content-length"]) > 0
    assert raw.request("GET", "/v2").status == 200


def test_options_lists_the_methods(raw: RawClient) -> None:
    answer = raw.request("OPTIONS", "/v2/models/add_sub/infer")
    assert (answer.status, answer.headers["allow"]) == (204, "POST, OPTIONS")
    raw.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert raw.answer().status == 204


def test_a_trailing_slash_query_and_percent_escapes_are_understood(raw: RawClient) -> None:
    assert raw.request("GET", "/v2/").status == 200
    assert raw.request("GET", "/v2/models/add%5Fsub?x=1").status == 200
    assert raw.request("GET", "http://host/v2/health/live").status == 200


def test_every_route_answers_without_a_server_error(raw: RawClient) -> None:
    for route in ROUTES:
        for optional in (True, False):
            path = route.pattern.replace("{repository}", "other").replace("{model}", "nope").replace("{version}", "1")
            path = path.replace("[", "").replace("]", "") if optional else path.split("[")[0] + path.split("]")[-1]
            answer = raw.request(route.method, path, b"{}" if route.method == "POST" else b"")
            assert answer.status < 500 or answer.status == 501, (path, answer)
            if answer.status >= 400:
                assert json.loads(answer.body)["error"]


def test_an_http_1_0_client_gets_its_answer_and_the_end(http_server: ServerProcess, raw: RawClient) -> None:
    raw.send(b"GET /v2 HTTP/1.0\r\n\r\n")
    assert raw.answer().headers["connection"] == "close"
    assert raw.closed()
    with RawClient(http_server.http) as again:
        again.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert again.answer().headers["connection"] == "keep-alive"
        again.send(build("GET", "/v2"))
        assert again.answer().status == 200
