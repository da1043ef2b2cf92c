"""Who holds a server's memory: the sums, what would fit, many models, and a server that does not tell."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.models import Server, Version
from dashboard.servers import memory
from dashboard.servers.memory import FILES, HOST, LAST_LOAD, LOAD_FACTOR, UNKNOWN, Device, fit_of, server_memory
from dashboard.servers.memory_pages import DRAWN, LISTED, drawn
from dashboard.shared.exceptions import NotFound
from tests.dashboard.conftest import text_of


def row(name: str, *sizes: int, kept_by: str = "pinned", **more: Any) -> dict[str, Any]:
    """A version as a server tells it, with an instance of each size on the host."""
    parts = [
        {"device": HOST, "bytes": size, "basis": "measured", "instances": [f"{name}_{n}"]}
        for n, size in enumerate(sizes)
    ]
    state = {"state": "READY" if sizes else "UNAVAILABLE", "asleep": False, "mode": "pinned", "kept_by": kept_by}
    head = {"name": name, "namespace": "", "version": "1", "last_inference_ms": 0, "needs": None}
    return head | state | {"parts": parts} | more


def told(*rows: dict[str, Any], **device: int) -> dict[str, Any]:
    sizes = {"total": 1000, "available": 400, "server": 300, "budget": 0, "budget_kept": 0, "budget_evictable": 0}
    return {"devices": [{"device": HOST, "where": "here", "measured": True} | sizes | device], "models": list(rows)}


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function that sets the answer of every server, or the error that asking raises."""

    def tell(answer: Any) -> None:
        def ask(_: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(memory.ServerClient, "memory", ask)

    return tell


def test_the_parts_of_a_device_sum_to_what_was_measured(server: Server, tells: Callable[[Any], None]) -> None:
    tells(told(row("a", 50, 70), row("b", 90, kept_by=""), row("asleep")))
    [device] = server_memory(server).devices
    assert (device.others, device.server, device.available, device.total) == (300, 300, 400, 1000)
    assert [(one.model, one.bytes, one.evictable) for one in device.holders] == [("a", 120, False), ("b", 90, True)]
    assert (device.itself, device.evictable) == (90, 90)
    assert [part.bytes for part in device.holders[0].parts] == [50, 70]


def test_the_largest_of_many_models_are_drawn_and_the_others_are_summed(
    server: Server, tells: Callable[[Any], None], as_person: Callable[..., Client]
) -> None:
    tells(told(*(row(f"m{number:03}", number + 1) for number in range(500)), total=10**6, server=200_000))
    [device] = server_memory(server).devices
    picture = drawn(device)
    assert [piece.label for piece in picture.inside[:2]] == ["m499", "m498"]
    assert [piece.label for piece in picture.inside[DRAWN:]] == [f"{500 - DRAWN} more", "Server itself"]
    assert sum(piece.bytes for piece in picture.inside) == device.server
    assert sum(piece.width for piece in picture.inside) == pytest.approx(100)
    assert picture.rest == 500 - LISTED
    page = text_of(as_person(), "/servers/local/memory")
    assert f"{500 - LISTED} smaller ones" in page
    assert page.count("measured") < 2 * LISTED


def device(**sizes: int) -> Device:
    given = {"available": 400, "budget": 0, "budget_kept": 0, "budget_evictable": 0} | sizes
    holder = memory.Holder("idle", 1, 150, "measured", [], "", None)
    return Device(HOST, "here", 1000, 300, 300, 150, measured=True, holders=[holder], **given)


BUDGET = {"budget": 300, "budget_kept": 100, "budget_evictable": 150}


@pytest.mark.parametrize(
    ("size", "sizes", "answer", "left", "evicts", "over"),
    [
        (400, {}, "yes", 0, 0, 0),
        (401, {}, "no", -1, 0, 0),  # without a budget the server frees nothing for a load
        (50, BUDGET, "yes", 350, 0, 0),
        (180, BUDGET, "after_eviction", 350, 130, 0),
        (480, BUDGET, "after_eviction", 70, 150, 280),
        (600, BUDGET, "no", -50, 150, 400),
    ],
)
def test_what_would_fit_follows_the_rules_of_a_load(
    size: int, sizes: dict[str, int], answer: str, left: int, evicts: int, over: int
) -> None:
    found = fit_of("m", [1], {HOST: size}, FILES, [device(**sizes)])
    assert (found.answer, found.left, found.evicts, found.over_budget) == (answer, left, evicts, over)


def test_a_model_that_is_not_in_memory_needs_what_it_held_last_or_a_multiple_of_its_files(
    relu: Version, server: Server, tells: Callable[[Any], None], api: APIClient
) -> None:
    tells(told())
    [fit] = server_memory(server).fits
    assert (fit.model, fit.versions, fit.basis) == ("relu", [1], FILES)
    assert fit.needs == {HOST: LOAD_FACTOR * relu.size_bytes}
    tells(told(row("relu", needs={"host_bytes": 500, "gpu_bytes": {}})))
    answer = api.get("/api/v1/servers/local/memory").json()
    [fit] = answer["fits"]
    assert (fit["basis"], fit["needs"], fit["answer"], fit["left"]) == (LAST_LOAD, {HOST: 500}, "no", -100)
    assert answer["devices"][0]["total"] == 1000
    Version.objects.update(format="python")
    tells(told())
    assert [(fit.answer, fit.needs) for fit in server_memory(server).fits] == [(UNKNOWN, {})]
    tells(told(row("relu", 10)))
    assert server_memory(server).fits == []


def test_a_server_that_does_not_tell_is_named(
    server: Server, tells: Callable[[Any], None], as_person: Callable[..., Client], api: APIClient
) -> None:
    assert "does not answer" in text_of(as_person(), "/servers/local/memory")
    assert api.get("/api/v1/servers/local/memory").status_code == 503
    tells(NotFound("no such path"))
    assert "it is another program" in text_of(as_person(is_superuser=True), "/servers/local/memory")
