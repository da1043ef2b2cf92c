"""A person who sends a hundred slow requests through the dashboard waits for them, and no other person does."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.test import Client
from rest_framework.test import APIClient

from dashboard.servers import fair_shares
from dashboard.servers.client import ServerClient
from dashboard.servers.fair_shares import SHARE, FairShares
from dashboard.servers.services import server_ensure_local
from dashboard.shared.exceptions import TooMany
from tests.dashboard.client_that_goes import asking, go
from tests.dashboard.web_process import finished, listening, migrate
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

MANY = 100
GATED = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.answered = 0

    def execute(self, requests):
        open({gate!r} + ".began", "w").close()
        answers = []
        for request in requests:
            while not os.path.exists({gate!r}):
                time.sleep(0.01)
            self.answered += 1
            number = np.full((1, 1), self.answered, np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", number)]))
        return answers
"""
CONFIG = """name: "gated" backend: "python" max_batch_size: 1 input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}"""
PREPARE = """
from django.contrib.auth import get_user_model
from dashboard.access.authorisation import Actor
from dashboard.accounts.tokens import token_create
from dashboard.models import Server
from dashboard.servers.services import server_ensure_local
server_ensure_local()
Server.objects.update(http_url="{url}")
for name in ("ada", "bob"):
    user = get_user_model().objects.create_superuser(name)
    print(token_create(user=user, actor=Actor(user=user), name="t", rights=["infer"])[1])
"""
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[ServerProcess]:
    source = GATED.format(gate=str(tmp_path / "gate"))
    model_factory.python_model(tmp_path / "models", "gated", source, CONFIG.format())
    with ServerProcess(tmp_path / "models") as server:
        yield server


def infer(address: str, token: str) -> int:
    """Ask the model through the dashboard, and return how many it has answered with this one."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(trust_env=False, timeout=2 * PATIENCE_S, headers=headers) as client:
        answer = client.post(f"{address}/api/v1/models/gated/infer", json=BODY)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["outputs"][0]["data"][0])


def waiting(server: ServerProcess) -> int:
    """How many requests wait at the server; the one that is run is not among them."""
    page = httpx.get(server.metrics_url, trust_env=False, timeout=PATIENCE_S).text
    [count] = re.findall(r'nv_inference_pending_request_count\{model="gated".*\} (\d+)', page)
    return int(count)


def test_one_persons_hundred_slow_requests_do_not_make_another_wait(serving: ServerProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    migrate(data)
    ada, bob = finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE.format(url=serving.http_url)).split()
    with listening(data, "-m", "daphne") as (address, _), ThreadPoolExecutor(MANY + 1) as people:
        hers = [people.submit(infer, address, ada) for _ in range(MANY)]
        wait_until((tmp_path / "gate.began").exists, what="the first of her requests is run")
        wait_until(lambda: waiting(serving) == SHARE - 1, what="the rest of her share waits behind it")
        his = people.submit(infer, address, bob)
        wait_until(lambda: waiting(serving) == SHARE, what="his request at the server")
        (tmp_path / "gate").touch()
        place = his.result()
        assert place <= SHARE + 1, "only those that were under way are answered before his"
        assert sorted([place, *(one.result() for one in as_completed(hers))]) == list(range(1, MANY + 2))


# -- slots ---------------------------------------------------------------------------------------------------------------
def hold(shares: FairShares, person: int, order: list[int], gate: threading.Event) -> None:
    with shares.slot(person):
        order.append(person)
        gate.wait(PATIENCE_S)


def test_those_who_wait_for_the_last_slot_are_let_in_person_by_person() -> None:
    shares, order, gates = FairShares(slots=1, share=1), [], [threading.Event() for _ in range(5)]
    with ThreadPoolExecutor(5) as threads:
        for number, (person, gate) in enumerate(zip((1, 1, 1, 2, 3), gates, strict=True)):
            threads.submit(hold, shares, person, order, gate)
            wait_until(lambda number=number: len(order) + sum(map(len, shares._waiting.values())) == number + 1)
        for gate in gates:
            gate.set()
    assert order == [1, 1, 2, 3, 1] or order == [1, 2, 3, 1, 1]
    assert (shares._taken, shares._waiting) == ({}, {})


def test_a_person_with_too_many_waiting_requests_is_refused_and_no_other() -> None:
    shares = FairShares(slots=4, share=1, waiting=1)
    with ExitStack() as held_slots:
        held_slots.enter_context(shares.slot(1))
        ticket = shares._ask(1)
        with pytest.raises(TooMany, match="1 of your inference requests are under way and 1 wait"):
            held_slots.enter_context(shares.slot(1))
        held_slots.enter_context(shares.slot(2))
        shares._end(1, ticket)
    assert (shares._taken, shares._waiting) == ({}, {})


def test_a_wait_that_is_given_up_leaves_its_place_to_others() -> None:
    shares = FairShares(slots=1, share=1)

    async def impatient() -> None:
        async with shares.async_slot(1, wait_s=0.01):
            raise AssertionError

    with shares.slot(2):
        with pytest.raises(TooMany, match="take long"), shares.slot(1, wait_s=0.01):
            raise AssertionError
        with pytest.raises(TooMany, match="take long"):
            asyncio.run(impatient())
    with shares.slot(1):
        assert shares._taken == {1: 1}
    assert (shares._taken, shares._waiting) == ({}, {})


@pytest.mark.django_db
def test_rest_says_so_and_when_to_try_again(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    server_ensure_local()
    monkeypatch.setattr(fair_shares, "INFERENCE", FairShares(slots=0, waiting=0))
    answer = api.post("/api/v1/models/gated/infer", BODY)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
    assert "are under way" in answer.json()["error"]


@pytest.mark.django_db(transaction=True)
def test_a_request_whose_client_went_while_it_waited_is_not_run(
    as_person: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server_ensure_local()
    shares, asked = FairShares(slots=1), []
    monkeypatch.setattr(fair_shares, "INFERENCE", shares)

    def ask(client: ServerClient, name: str, *given: Any, **more: Any) -> Any:
        asked.append(name)
        raise TooMany("the model was asked")

    monkeypatch.setattr(ServerClient, "infer_raw", ask)
    cookie = as_person().cookies[settings.SESSION_COOKIE_NAME].value

    async def ask_and_go() -> None:
        with shares.slot(0):
            client = await asking("/api/v1/models/gated/infer", BODY, cookie)
            await asyncio.to_thread(wait_until, lambda: shares._waiting, what="a request that waits")
            await go(client)
        await client.wait(PATIENCE_S)

    asyncio.run(ask_and_go())
    wait_until(lambda: not shares._taken and not shares._waiting, what="the slot's return")
    assert asked == []
