"""A capture of some tokens or people keeps their requests alone, and never a token itself."""

from pathlib import Path

import pytest

from repository.core.captures import counters_path
from tests.serving.captures.wanted import captured, counts, want
from tests.serving.frontends.raw_http import RawClient, infer_body, tensor
from tests.serving.usage.auth_files import digest, entry, write_auth
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess, wait_until

SECRETS = ("key-of-a-shop", "key-of-a-lab", "key-of-bob")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_requests_of_the_named_tokens_and_people_are_kept(tmp_path: Path, workers: str) -> None:
    onnx_scale(tmp_path / "models")
    names = [("ada: shop", "ada"), ("ada: lab", "ada"), ("bob: bot", "bob")]
    tokens = [{**entry(secret, person), "name": name} for secret, (name, person) in zip(SECRETS, names, strict=True)]
    folders = {
        "of a token": want(tmp_path / "captures" / "c1", "scale", accounts=["ada: shop"]),
        "of a person": want(tmp_path / "captures" / "c2", "scale", accounts=["ada"]),
    }
    flags = (f"--auth-file={write_auth(tmp_path / 'auth.json', tokens)}", f"--usage-log={tmp_path / 'usage'}")
    flags += (f"--capture-folder={tmp_path / 'captures'}", f"--frontend-workers={workers}")
    try:
        with ServerProcess(tmp_path / "models", *flags) as server, RawClient(server.http) as client:

            def ask(secret: str, name: str) -> None:
                body = infer_body(tensor([1.0], [1, 1], name="INPUT0"), id=name)
                assert (
                    client.request("POST", "/v2/models/scale/infer", body, Authorization=f"Bearer {secret}").status
                    == 200
                )

            def chosen() -> bool:
                ask(SECRETS[0], "")
                return all(
                    (folder / "counts.json").exists() and counts(folder)["chosen"] for folder in folders.values()
                )

            wait_until(chosen, what="the captures")
            for secret in SECRETS * 2:
                ask(secret, secret)
        kept = {
            kind: [name for rows in captured(folder) for name in rows.ids if name] for kind, folder in folders.items()
        }
    finally:
        for folder in folders.values():
            counters_path(folder).unlink(missing_ok=True)
    assert sorted(kept["of a token"]) == [SECRETS[0]] * 2
    assert sorted(kept["of a person"]) == sorted(SECRETS[:2] * 2)
    for path in (tmp_path / "captures").rglob("*.json"):
        assert not any(secret in path.read_text() or digest(secret) in path.read_text() for secret in SECRETS)
