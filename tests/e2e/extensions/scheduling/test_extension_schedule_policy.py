"""The schedule policy extension with the stock clients: priorities, timeouts, what happens after one, full queues."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, Calls, calls_to, client_of, refused
from tests.e2e.gated_model import GatedModel
from tests.support.serving_process import PATIENCE_S, ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
# Level 1 delays what is late, level 2 rejects it and holds three requests at most.
POLICIES = """instance_group { count: 1 } dynamic_batching { priority_levels: 2 default_priority_level: 2
    priority_queue_policy { key: 1 value { timeout_action: DELAY allow_timeout_override: true } }
    priority_queue_policy { key: 2 value {
        default_timeout_microseconds: 600000000 allow_timeout_override: true max_queue_size: 3 } } }"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, GatedModel]]:
    repository = tmp_path_factory.mktemp("models")
    gated = GatedModel(repository, tmp_path_factory.mktemp("gate"), extra=POLICIES)
    with ServerProcess(repository) as server:
        yield server, gated
        gated.open()
        assert "Traceback" not in server.log


@pytest.fixture(params=PROTOCOLS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(serving: tuple[ServerProcess, GatedModel], kind: str) -> Iterator[TritonClient]:
    with client_of(serving[0], kind) as client:
        yield client


@pytest.fixture
def gated(serving: tuple[ServerProcess, GatedModel]) -> Iterator[GatedModel]:
    yield serving[1]
    serving[1].shut()


@pytest.fixture
def calls(serving: tuple[ServerProcess, GatedModel], gated: GatedModel, kind: str) -> Iterator[Calls]:
    """The one instance is busy with request "first" until the gate opens."""
    with calls_to(serving[0], kind) as calls:
        first = calls.begin("gated", ONE, request_id="first")
        gated.wait_for("first")
        yield calls
        gated.open()
        assert first.result(PATIENCE_S).outputs


def test_the_server_says_that_it_has_the_extension(client: TritonClient) -> None:
    assert "schedule_policy" in client.described("get_server_metadata")["extensions"]


def test_a_higher_priority_runs_first_and_without_one_the_default_counts(gated: GatedModel, calls: Calls) -> None:
    waiting = [
        calls.begin("gated", ONE, 1, request_id="default"),
        calls.begin("gated", ONE, 2, request_id="low", priority=2),
        calls.begin("gated", ONE, 3, request_id="high", priority=1),
    ]
    gated.open()
    assert [call.result(PATIENCE_S).id for call in waiting] == ["default", "low", "high"]
    assert gated.began() == ["first", "high", "default", "low"]


def test_a_request_is_rejected_when_its_timeout_expires_in_the_queue(
    gated: GatedModel, calls: Calls, client: TritonClient
) -> None:
    message = refused(client, "UNAVAILABLE", client.infer, "gated", ONE, request_id="late", timeout=1000, priority=2)
    assert "timeout expired" in message
    gated.open()
    assert client.infer("gated", ONE, request_id="last").id == "last"
    assert gated.began() == ["first", "last"]


def test_a_level_may_delay_what_is_late_in_place_of_rejecting_it(
    gated: GatedModel, calls: Calls, client: TritonClient
) -> None:
    late = calls.begin("gated", ONE, 1, request_id="late", timeout=1000, priority=1)
    refused(client, "UNAVAILABLE", client.infer, "gated", ONE, timeout=2000, priority=2)  # so its time is over too
    fresh = calls.begin("gated", ONE, 2, request_id="fresh", priority=1)
    gated.open()
    assert [late.result(PATIENCE_S).id, fresh.result(PATIENCE_S).id] == ["late", "fresh"]
    assert gated.began() == ["first", "fresh", "late"]


def test_a_full_queue_refuses_and_the_other_level_has_room(
    gated: GatedModel, calls: Calls, client: TritonClient
) -> None:
    waiting = [calls.begin("gated", ONE, number, request_id=str(number), priority=2) for number in (1, 2, 3)]
    message = refused(client, "UNAVAILABLE", client.infer, "gated", ONE, priority=2)
    assert "Exceeds maximum queue size of 3" in message
    waiting.append(calls.begin("gated", ONE, 4, request_id="4", priority=1))
    gated.open()
    assert [call.result(PATIENCE_S).id for call in waiting] == ["1", "2", "3", "4"]
