"""Two processes evaluate and send at the same time, and are killed at writes and sendings: every alert is told once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dashboard.alerts.conftest import Receiver
from tests.dashboard.web_process import migrate
from tests.support.serving_process import START_TIMEOUT_S

# The parent forks two processes for each n; the first kills itself at its n-th write or sending, the second one later. It ends
# when a process reaches its end alive.
PROGRAM = """
import itertools, json, os, signal, sys, traceback
import django; django.setup()
from django.db import connections
from django.db.models import Model, QuerySet
from dashboard.access.authorisation import SYSTEM
from dashboard.alerts import outbox, senders
from dashboard.alerts.channels import channel_create
from dashboard.alerts.outbox import alerts_tell, deliveries_send
from dashboard.alerts.services import alerts_evaluate
from dashboard.alerts.table import BY_NAME
from dashboard.models import Alert, AlertDelivery, Server, ServerState

channel_create(actor=SYSTEM, name="hook", kind="webhook", address=sys.argv[1])
for number in range(3):
    server = Server.objects.create(name=f"s{number}", http_url="http://x", grpc_url="x", metrics_url="http://x")
    ServerState.objects.create(server=server, state="down", last_reason="It is away.")
object.__setattr__(BY_NAME["server_down"], "hold_s", 0.0)
object.__setattr__(BY_NAME["server_down"], "clear_s", 0.0)
outbox.CLAIM_S = 0.0  # whoever was killed is taken for dead at once

def work(rounds):
    for _ in range(rounds):
        alerts_evaluate(only=["server_down"])
        alerts_tell()
        deliveries_send()

def attempt(fatal):
    left = fatal
    def counted(owner, name):
        real = getattr(owner, name)
        def call(*given, **more):
            nonlocal left
            for _ in range(2):  # before it, and after it
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if _ == 0:
                    result = real(*given, **more)
            return result
        setattr(owner, name, call)
    counted(QuerySet, "update"); counted(Model, "save"); counted(senders, "post")
    work(2)

def run(fatal, second):
    connections.close_all()
    pids = []
    for n in (fatal, second):
        pid = os.fork()
        if pid == 0:
            try:
                attempt(n)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(3)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]

kills, faults = 0, 0
for what in ("down", "ready"):
    ServerState.objects.update(state=what)
    for fatal in itertools.count(1, 3):
        ended = run(fatal, fatal + 4)
        kills += sum(os.WIFSIGNALED(one) for one in ended)
        faults += sum(os.WIFEXITED(one) and os.WEXITSTATUS(one) != 0 for one in ended)
        if not os.WIFSIGNALED(ended[0]):
            break
for _ in range(6):
    AlertDelivery.objects.filter(state="waiting").update(due_at="2020-01-01T00:00:00Z")
    work(1)
print(json.dumps({
    "kills": kills, "faults": faults,
    "alerts": list(Alert.objects.values_list("subject", "state")),
    "messages": sorted(AlertDelivery.objects.values_list("alert__subject", "what", "state")),
}))
"""


@pytest.mark.long
def test_nothing_is_told_twice_and_nothing_is_lost(receiver: Receiver, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    environment |= {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "SLIPWAY_DATA": str(tmp_path / "data")}
    environment["SLIPWAY_ALERT_ADDRESSES"] = receiver.address
    migrate(tmp_path / "data")
    command = [sys.executable, "-c", PROGRAM, receiver.address]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=20 * START_TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    names = ["s0", "s1", "s2"]
    assert told["kills"] > 5
    assert told["faults"] == 0, done.stderr.decode()[-3000:]
    assert sorted(told["alerts"]) == [[name, "resolved"] for name in names], "one alert for each fault"
    assert told["messages"] == [[name, what, "sent"] for name in names for what in ("fired", "resolved")]
    received = {
        (headers["Slipway-Delivery"], json.loads(body)["event"], json.loads(body)["alert"])
        for headers, body in receiver.got
    }
    assert len(received) == 6, "a message that was sent again, because its sender was killed meanwhile, has the same id"
    assert len({(event, alert) for _, event, alert in received}) == 6
