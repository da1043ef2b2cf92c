"""The headers by which rollouts are sticky, and whether it is a mirror, follow a request to what is asked for its sake."""

import numpy as np
import pytest

from serving.core.client_headers import ClientHeaders, header_of, pass_on
from serving.core.in_flight import InFlightRequest
from tests.serving.requests import in_flight


def request(*users: str) -> InFlightRequest:
    made = in_flight("m", {"x": np.zeros(1)}, lambda answer, final: None)
    for user in users:
        made.observe(ClientHeaders({"x-user": user}))
    return made


@pytest.mark.parametrize(
    ("made_for", "found"), [(["a", "a"], "a"), (["a", "b"], None), (["a", ""], None), ([""], None), ([], None)]
)
def test_a_models_own_request_for_several_clients_carries_the_headers_that_all_have(
    made_for: list[str], found: str | None
) -> None:
    child = request()
    pass_on([request(*filter(None, [user])) for user in made_for], child)
    assert header_of(child, "x-user") == found


def test_a_request_that_has_headers_keeps_them() -> None:
    child = request("own")
    pass_on([request("a")], child)
    assert header_of(child, "x-user") == "own"


@pytest.mark.parametrize(
    ("mirrors", "found"), [([True], True), ([True, True], True), ([True, False], False), ([False, True], False)]
)
def test_a_request_that_is_made_for_a_client_too_is_no_mirror(mirrors: list[bool], found: bool) -> None:
    batch = [request() for _ in mirrors]
    for one, mirrored in zip(batch, mirrors, strict=True):
        one.mirrored = mirrored
    child = request()
    child.made_for(*batch)
    assert child.mirrored is found
