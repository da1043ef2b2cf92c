"""A request over a quota is refused with 429 or RESOURCE_EXHAUSTED, and says when to try again."""

import json
import queue
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from repository.core.usage_log import Holder
from serving.core.errors import ServingError
from serving.usage.accounts import Account, Quota
from serving.usage.auth_file import AuthFile
from serving.usage.ledger import refusal
from tests.serving.frontends.raw_http import Answer, RawClient, infer_body, tensor
from tests.serving.usage.auth_files import digest, entry, write_auth
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

PATH = "/v2/models/identity/infer"


def ask(client: RawClient, token: str, rows: int = 1) -> Answer:
    return client.request("POST", PATH, infer_body(tensor([1.0] * rows, [rows, 1])), Authorization=f"Bearer {token}")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_used_up_quota_is_refused_over_http_and_grpc_and_a_changed_one_applies(tmp_path: Path, workers: str) -> None:
    onnx_identity(tmp_path / "models", dims=[1], max_batch_size=8)
    tokens = [entry("a", "ada", ("lab",)), entry("b", "ada", ("lab",)), entry("c", "bob")]
    quotas = [{"of": "person", "name": "ada", "requests_per_day": 3}]
    auth = write_auth(tmp_path / "auth.json", tokens, quotas)
    flags = (f"--auth-file={auth}", f"--frontend-workers={workers}")
    with ServerProcess(tmp_path / "models", *flags) as server, RawClient(server.http) as client:
        assert [ask(client, token).status for token in "abab"] == [200, 200, 200, 429]
        refused = ask(client, "a")
        assert "the quota of 'ada' is 3 requests a day, and is used up" in refused.json["error"]
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        assert ask(client, "c").status == 200
        with tritonclient.grpc.InferenceServerClient(server.grpc) as over_grpc:
            given = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
            given.set_data_from_numpy(np.ones((1, 1), np.float32))
            with pytest.raises(InferenceServerException) as error:
                over_grpc.infer("identity", [given], headers={"authorization": "Bearer b"})
            assert error.value.status() == str(grpc.StatusCode.RESOURCE_EXHAUSTED)
            answers: queue.Queue[Any] = queue.Queue()
            over_grpc.start_stream(
                lambda result, error: answers.put(error),
                headers={"authorization": "Bearer b", "triton_grpc_error": "true"},
            )
            over_grpc.async_stream_infer("identity", [given])
            assert answers.get(timeout=PATIENCE_S).status() == str(grpc.StatusCode.RESOURCE_EXHAUSTED)
            over_grpc.stop_stream()
        described = json.dumps(
            {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}]}
        ).encode()
        headers = {"Authorization": "Bearer a", "Inference-Header-Content-Length": str(len(described))}
        for path, body in ((PATH, described + bytes(4)), ("/v2/models/identity/generate", b'{"INPUT0": 1.0}')):
            over = client.request("POST", path, body, **headers)
            assert over.status == 429, path
            assert "retry-after" in over.headers, path
            headers = {"Authorization": "Bearer a"}
        write_auth(auth, tokens, [{"of": "person", "name": "ada", "requests_per_day": 5}])
        wait_until(lambda: ask(client, "a").status == 200, what="the larger quota")
        assert [ask(client, token).status for token in "ab"] == [200, 429]


def test_a_group_has_one_quota_of_rows_for_all_its_tokens(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models", dims=[1], max_batch_size=8)
    quotas: list[dict[str, Any]] = [{"of": "group", "name": "lab", "rows_per_day": 10}]
    auth = write_auth(tmp_path / "auth.json", [entry("a", "ada", ("lab",)), entry("b", "bob", ("lab",))], quotas)
    with ServerProcess(tmp_path / "models", f"--auth-file={auth}") as server, RawClient(server.http) as client:
        assert [ask(client, token, 4).status for token in "abab"] == [200, 200, 200, 429]


def test_a_rate_lets_bursts_of_a_second_through_and_then_one_request_after_another() -> None:
    quota = Quota("token", digest("a"))
    quota.interval_ns, quota.slack_ns = 100_000_000, 900_000_000  # 10 a second
    account = Account(quota.name, Holder("a", "", ()))
    account.bind((quota,))
    now = time.monotonic_ns()
    assert [account.blocked_by(now) for _ in range(11)] == [None] * 10 + [quota]
    error = refusal(quota, now, 3600)
    assert (error.retry_after_s, "10 requests a second" in error.message) == (1, True)
    assert account.blocked_by(now + 99_000_000) is quota
    assert [account.blocked_by(now + 101_000_000) for _ in range(2)] == [None, quota]


def test_a_rate_that_is_taken_away_and_a_limit_that_grows_let_requests_through() -> None:
    quota = Quota("token", "x")
    account = Account("x", Holder("a", "", ()))
    quota.interval_ns, quota.requests_per_day = 10**18, 5
    account.bind((quota,))
    assert [account.blocked_by(1) for _ in range(2)] == [None, quota]
    quota.interval_ns = 0
    quota.judge()
    assert [account.blocked_by(1) for _ in range(5)] == [None] * 4 + [quota]
    quota.requests_per_day = 6
    quota.judge()
    assert [account.blocked_by(1) for _ in range(2)] == [None, quota]


def test_a_request_that_one_quota_refuses_uses_nothing_of_the_others() -> None:
    token, group = Quota("token", "x"), Quota("group", "lab")
    token.requests_per_day, group.requests_per_day = 5, 1
    account = Account("x", Holder("a", "", ("lab",)))
    account.bind((token, group))
    assert [account.blocked_by(1) for _ in range(3)] == [None, group, group]
    assert (token.requests, group.requests) == (1, 1)


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ({"of": "planet", "name": "x"}, "quota 1: expected 'of' to be one of token, person, group"),
        ({"of": "person"}, "quota 1: expected a 'name'"),
        ({"of": "person", "name": "a", "requests_per_day": -1}, "a number above 0"),
        ({"of": "person", "name": "a", "requests_per_day": 0}, "a number above 0"),
        ({"of": "person", "name": "a", "requests_per_day": True}, "a number above 0"),
        ({"of": "person", "name": "a", "rows_per_day": 1.5}, "a whole number"),
        ({"of": "person", "name": "a", "requests": 1}, "got 'requests'"),
        ("ada", "quota 1: expected an object"),
    ],
)
def test_a_malformed_quota_is_refused_with_a_sentence(tmp_path: Path, quota: Any, sentence: str) -> None:
    with pytest.raises(ServingError, match=sentence):
        AuthFile(write_auth(tmp_path / "auth.json", [entry("a")], [quota]))
