"""The rate limiter: instances of any model wait for the resources that they share, and a demand that is too high is refused."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.e2e.extensions.clients import PROTOCOLS, calls_to, client_of, refused
from tests.e2e.gated_model import GatedModel
from tests.support.serving_process import PATIENCE_S, ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
LIMITED = """instance_group { count: 1 kind: KIND_CPU rate_limiter { resources { name: "R" global: true count: 2 }
    priority: %d } }"""


class Setting(NamedTuple):
    server: ServerProcess
    holder: GatedModel
    waiter: GatedModel
    free: GatedModel


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gates")
    holder = GatedModel(repository, folder, "holder", extra=LIMITED % 1)
    waiter = GatedModel(repository, folder, "waiter", extra=LIMITED % 2)
    free = GatedModel(repository, folder, "free", extra="instance_group { count: 1 kind: KIND_CPU }")
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:3", "--model-control-mode=explicit")
    with ServerProcess(repository, *flags, "--load-model=*") as server:
        yield Setting(server, holder, waiter, free)
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_an_instance_waits_until_the_resources_it_needs_are_free(setting: Setting, kind: str) -> None:
    server, *gates = setting
    with calls_to(server, kind) as calls:
        try:
            held = calls.begin("holder", ONE, request_id="held")
            setting.holder.wait_for("held")
            waiting = calls.begin("waiter", ONE, 1, request_id="waiting")
            setting.free.open()
            assert calls.begin("free", ONE, request_id="free").result(PATIENCE_S).id == "free", "it needs none of them"
            setting.waiter.open()
            assert setting.waiter.began() == []
            assert not waiting.done()
            setting.holder.open()
            assert [held.result(PATIENCE_S).id, waiting.result(PATIENCE_S).id] == ["held", "waiting"]
            assert setting.waiter.began() == ["waiting"]
        finally:
            for gate in gates:
                gate.open()
    for gate in gates:
        gate.shut()


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_demand_that_can_never_be_met_is_refused_at_load(setting: Setting, kind: str) -> None:
    with client_of(setting.server, kind) as client:
        config = client.described("get_model_config", "free")
        config["instance_group"] = [
            {"count": 1, "kind": "KIND_CPU", "rate_limiter": {"resources": [{"name": "R", "global": True, "count": 4}]}}
        ]
        message = refused(client, "INVALID_ARG", client.call, "load_model", "free", config=json.dumps(config))
        assert "needs 4 of rate limiter resource 'R', but there are only 3" in message
        assert client.call("is_model_ready", "free") is True
