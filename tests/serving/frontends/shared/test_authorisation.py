"""Restricted groups need their key, guarded ones a token; unknown ones are denied."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import serving.usage.auth_file
from serving.cli.option_values import Restriction
from serving.cli.options import Options
from serving.core.errors import Outdated, PermissionDenied, ServingError, Unauthenticated
from serving.frontends.shared.authorisation import Authoriser
from tests.serving.frontends.raw_http import RawClient, infer_body, tensor
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess, wait_until


def entry(token: str, models: list[str], rights: list[str], expires_at: float | None = None) -> dict[str, Any]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"sha256": digest, "models": models, "rights": rights, "expires_at": expires_at}


def write_tokens(path: Path, *tokens: dict[str, Any]) -> Path:
    return replace_text(path, json.dumps({"tokens": list(tokens)}))


def replace_text(path: Path, text: str) -> Path:
    """Replace the file in one step: a look in between would find a part of it, which is one more broken file."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    return beside.replace(path)


def authoriser(tmp_path: Path, *tokens: dict[str, Any], protocol: Any = "http", **options: Any) -> Authoriser:
    if tokens:
        options["auth_file"] = write_tokens(tmp_path / "auth.json", *tokens)
    return Authoriser.from_options(Options(model_repository=(tmp_path,), **options), protocol)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_nothing_configured_is_open(tmp_path: Path) -> None:
    assert authoriser(tmp_path).open


def test_a_number_below_the_highest_so_far_is_refused(tmp_path: Path) -> None:
    checked = authoriser(tmp_path, http_restricted_api=(Restriction(("model-repository",), "key", "secret"),))

    def check(fence: str, key: str = "secret") -> None:
        checked.check("model-repository", {"key": key, "slipway-fence": fence})

    check("7")
    check("7")
    check("12")
    with pytest.raises(Outdated, match="leads with number 12: number 7 may change nothing here"):
        check("7")
    with pytest.raises(PermissionDenied):
        check("99", key="wrong")
    for odd in ("", "-1", "x", "\u00b2", "9" * 40):
        with pytest.raises(ServingError, match="expected a number"):
            check(odd)
    check("12")
    checked.check("model-repository", {"key": "secret"})  # a person's call has no number


@pytest.mark.parametrize(("protocol", "prefix"), [("http", ""), ("grpc", "triton-grpc-protocol-")])
def test_a_restricted_group_needs_its_header_and_the_others_do_not(tmp_path: Path, protocol: str, prefix: str) -> None:
    restriction = (Restriction(("model-repository", "trace"), "admin-key", "secret"),)
    option = "http_restricted_api" if protocol == "http" else "grpc_restricted_protocol"
    checked = authoriser(tmp_path, protocol=protocol, **{option: restriction})
    assert not checked.open
    checked.check("inference", {})
    checked.check("trace", {f"{prefix}admin-key": "secret"})
    for headers in ({}, {f"{prefix}admin-key": "Secret"}, {f"{prefix}admin-key": ""}, {"other": "secret"}):
        with pytest.raises(PermissionDenied, match=f"expecting header '{prefix}admin-key'"):
            checked.check("model-repository", headers)


@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer(""), bearer("old"), {"authorization": "Basic good"}])
def test_inference_without_a_good_token_is_unauthenticated(tmp_path: Path, headers: dict[str, str]) -> None:
    checked = authoriser(tmp_path, entry("good", ["*"], ["infer"]), entry("old", ["*"], ["infer"], 1000.0))
    with pytest.raises(Unauthenticated):
        checked.check("inference", headers, "digits")


def test_a_token_is_for_its_models_and_rights_alone(tmp_path: Path) -> None:
    checked = authoriser(tmp_path, entry("one", ["digits"], ["infer"]), entry("reader", ["*"], ["read"]))
    checked.check("inference", bearer("one"), "digits")
    checked.check("metadata", {}, "digits")
    for token, model in (("one", "other"), ("reader", "digits")):
        with pytest.raises(PermissionDenied):
            checked.check("inference", bearer(token), model)


def test_a_changed_file_counts_a_broken_one_does_not_and_a_missing_one_denies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.usage.auth_file, "RECHECK_S", 0.01)
    checked = authoriser(tmp_path, entry("first", ["*"], ["infer"]))
    path = write_tokens(tmp_path / "auth.json", entry("second", ["*"], ["infer"]), entry("third", ["*"], ["infer"]))
    wait_until(lambda: _passes(checked, "second"), what="the changed file")
    assert not _passes(checked, "first")
    replace_text(path, "{ half")
    wait_until(lambda: "the changed auth file is not used" in caplog.text, what="a look at the broken file")
    assert _passes(checked, "second")
    os.unlink(path)
    wait_until(lambda: not _passes(checked, "second"), what="a look for the missing file")
    write_tokens(path, entry("second", ["*"], ["infer"]))
    wait_until(lambda: _passes(checked, "second"), what="the new file")


def test_a_broken_file_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again and again, because a person may be writing it."""
    monkeypatch.setattr(serving.usage.auth_file, "RECHECK_S", 0.01)
    checked = authoriser(tmp_path, entry("first", ["*"], ["infer"]))
    path = tmp_path / "auth.json"
    looks = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: looks.append(file) or read(file))  # type: ignore[func-returns-value]
    replace_text(path, "{ half")
    wait_until(lambda: looks.count(path) > 5, what="looks at the broken file")
    assert caplog.text.count("the changed auth file is not used") == 1
    write_tokens(path, entry("second", ["*"], ["infer"]))
    wait_until(lambda: _passes(checked, "second"), what="the mended file")


def _passes(checked: Authoriser, token: str) -> bool:
    try:
        checked.check("inference", bearer(token), "m")
    except Unauthenticated:
        return False
    return True


@pytest.mark.parametrize("content", ["", "[]", '{"tokens": [{}]}', '{"tokens": [1]}', '{"tokens": [{"sha256": 1}]}'])
def test_a_malformed_file_at_start_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "auth.json"
    path.write_text(content)
    with pytest.raises(ServingError, match="auth-file"):
        Authoriser.from_options(Options(model_repository=(tmp_path,), auth_file=path), "http")


def test_the_server_answers_403_and_401_and_lets_the_right_callers_through(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models")
    tokens = write_tokens(
        tmp_path / "auth.json", entry("good", ["identity"], ["infer"]), entry("poor", ["x"], ["infer"])
    )
    body = infer_body(tensor([1.0]))
    large = infer_body(tensor([1.0] * 100_000))
    flags = ("--http-restricted-api=model-repository,statistics:admin-key=secret", f"--auth-file={tokens}")
    with ServerProcess(tmp_path / "models", *flags) as server, RawClient(server.http) as client:
        path = "/v2/models/identity/infer"
        missing = client.request("POST", path, body)
        assert (missing.status, missing.headers["www-authenticate"]) == (401, "Bearer")
        assert client.request("POST", path, body, Authorization="Bearer poor").status == 403
        for content in (body, large):
            assert client.request("POST", path, content, Authorization="Bearer good").status == 200
        assert client.request("GET", "/v2/models/identity").status == 200
        denied = client.request("POST", "/v2/repository/index")
        assert (denied.status, "admin-key" in denied.json["error"]) == (403, True)
        assert client.request("GET", "/v2/models/stats", Admin_Key="wrong").status == 403
        assert client.request("GET", "/v2/models/stats", Admin_Key="secret").status == 200
        assert client.request("GET", "/v2/models/stats", Admin_Key="secret", Slipway_Fence="2").status == 200
        late = client.request("GET", "/v2/models/stats", Admin_Key="secret", Slipway_Fence="1")
        assert (late.status, "another watcher leads" in late.json["error"]) == (409, True)
        assert client.request("POST", path, large, Authorization="Bearer bad").status == 401
        assert client.closed()  # the large body was not read
        assert "secret" not in server.log
        assert "good" not in server.log


def test_a_malformed_file_ends_the_server_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("{")
    with ServerProcess(tmp_path, f"--auth-file={path}", wait="") as server:
        assert server.process is not None
        assert server.process.wait(60) == 1
        assert "--auth-file: expected an object with a list of tokens" in server.log
        assert "Traceback" not in server.log
