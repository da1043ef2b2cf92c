"""What `up` and `watch` write down of the same server does not undo the other's word."""

import pytest
from django.utils import timezone

from dashboard.models import ModelState, Server, ServerEnvironment, ServerEvent, ServerState
from dashboard.servers import server_state
from dashboard.servers.selectors import server_asked
from dashboard.servers.server_state import Report, VersionStatus
from dashboard.servers.services import server_ensure_local
from dashboard.shared.choices import ServerStatus
from dashboard.shared.exceptions import NotFound

pytestmark = pytest.mark.django_db


@pytest.fixture
def server() -> Server:
    return server_ensure_local()


def process(server: Server, state: str) -> None:
    server_state.server_process_record(
        server=server, state=state, pid=1, started_at=timezone.now(), restarts=0, reason="because"
    )


def state(server: Server) -> str:
    return ServerState.objects.get(server=server).state


def test_a_ready_server_stays_ready_when_up_hears_of_it_later(server: Server):
    process(server, ServerStatus.STARTING)
    server_state.server_seen(server=server, ready=True, instance="a")
    process(server, ServerStatus.RUNNING)
    assert state(server) == ServerStatus.READY
    process(server, ServerStatus.DOWN)
    assert state(server) == ServerStatus.DOWN


def test_a_lost_server_that_up_is_starting_is_not_called_down(server: Server):
    process(server, ServerStatus.STARTING)
    server_state.server_lost(server=server, reason="nothing listens")
    assert state(server) == ServerStatus.STARTING


def test_a_lost_server_that_answered_is_down_and_so_are_its_models(server: Server):
    server_state.model_states_record([Report(server, [VersionStatus("digits", 1, "READY", "")])])
    server_state.server_seen(server=server, ready=True, instance="a")
    server_state.server_lost(server=server, reason="nothing listens")
    assert state(server) == ServerStatus.DOWN
    assert ModelState.objects.get().state == "UNAVAILABLE"
    assert not ServerEvent.objects.exists(), "of the bundled server, `up` tells more"


def test_model_states_follow_the_index_and_leave_others_untouched(server: Server):
    kept, gone = VersionStatus("kept", 1, "READY", ""), VersionStatus("gone", 1, "READY", "")
    server_state.model_states_record([Report(server, [kept, gone])])
    before = ModelState.objects.get(model_name="kept").updated_at
    server_state.model_states_record([Report(server, [kept, VersionStatus("new", 2, "LOADING", "")])])
    assert set(ModelState.objects.values_list("model_name", "state")) == {("kept", "READY"), ("new", "LOADING")}
    assert ModelState.objects.get(model_name="kept").updated_at == before


def test_several_servers_and_parts_of_them_are_recorded_together(server: Server):
    far = Server.objects.create(
        name="far", http_url="http://far:8000", grpc_url="far:8001", metrics_url="http://far:8002"
    )
    old, new, other = (
        VersionStatus(name, 1, state, "") for name, state in (("a", "LOADING"), ("a", "READY"), ("b", "READY"))
    )
    server_state.model_states_record([Report(server, [old, other]), Report(far, [old])])
    server_state.model_states_record([Report(server, [new], {"a"}), Report(far, [], {"a", "b"})])
    states = ModelState.objects.values_list("server__name", "model_name", "state")
    assert set(states) == {("local", "a", "READY"), ("local", "b", "READY")}


def test_parts_of_the_information_are_written_apart(server: Server):
    server_state.server_info_record(server=server, key="processes", value={"watch": 1})
    server_state.server_info_record(server=server, key="version", value="1.0")
    assert ServerState.objects.get(server=server).info == {"processes": {"watch": 1}, "version": "1.0"}


def test_a_restart_request_is_taken_once(server: Server):
    assert not server_state.server_restart_take(server=server)
    ServerState.objects.update(restart_requested_at=timezone.now())
    assert server_state.server_restart_take(server=server)
    assert not server_state.server_restart_take(server=server)


def test_another_process_of_a_server_that_up_does_not_run_is_a_restart(server: Server):
    listed = Server.objects.create(name="listed", http_url="http://x", grpc_url="x", metrics_url="http://x")
    for one in (listed, server):
        ServerState.objects.get_or_create(server=one)
        for instance in ("", "a", "a", "", "b", "b"):
            server_state.server_seen(server=one, ready=True, instance=instance)
    assert ServerState.objects.get(server=listed).restarts == 1
    assert ServerState.objects.get(server=server).restarts == 0, "`up` counts those of the bundled one"
    assert [(row.server, row.kind) for row in ServerEvent.objects.all()] == [(listed, "restarted")]


def test_requests_without_a_name_go_to_the_bundled_server_else_to_the_first_of_production():
    addresses = {"http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x"}
    staging = ServerEnvironment.objects.create(name="a-staging")
    Server.objects.create(name="a", environment=staging, **addresses)
    production = ServerEnvironment.objects.get(name="production")
    Server.objects.create(name="pod", environment=production, **addresses)
    assert server_asked().name == "pod"
    assert server_asked("a").name == "a"
    server_ensure_local()
    assert server_asked().name == "local"
    with pytest.raises(NotFound):
        server_asked("none")
