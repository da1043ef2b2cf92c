"""Guessing is slowed down by name and by address, for every web process together, and the page says when to go on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from dashboard.accounts import sign_in
from dashboard.accounts.sign_in import PER_ADDRESS, PER_NAME, PER_NAME_AND_ADDRESS, sign_in_forget
from dashboard.models import SignInCount
from tests.dashboard.web_process import finished, listening, migrate
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.django_db
RIGHT = "a long secret"


def attempt(name: str, password: str = "a guess", address: str = "192.0.2.1", **headers: str) -> HttpResponse:
    cache.clear()  # a web process shares no memory with another
    return Client(REMOTE_ADDR=address).post("/sign-in", {"username": name, "password": password}, **headers)


@pytest.fixture(autouse=True)
def ann(person: Callable[..., Any]) -> Any:
    return person(name="ann")


def test_after_so_many_guesses_not_even_the_right_password_opens_and_the_page_says_when() -> None:
    assert {attempt("ann").status_code for _ in range(PER_NAME_AND_ADDRESS)} == {200}
    answer = attempt("ann", RIGHT)
    assert (answer.status_code, 590 < int(answer["Retry-After"]) <= 600) == (429, True)
    assert "Try again in" in answer.content.decode()
    assert attempt("ann", RIGHT, "198.51.100.7").status_code == 302
    SignInCount.objects.update(ends_at=timezone.now() - timedelta(seconds=1))
    assert attempt("ann", RIGHT).status_code == 302


def test_one_address_that_tries_many_names_is_stopped(person: Callable[..., Any]) -> None:
    found = [attempt(f"nobody{number}").status_code for number in range(PER_ADDRESS + 1)]
    assert found == [200] * PER_ADDRESS + [429]
    assert attempt("ann", RIGHT).status_code == 429
    assert attempt("ann", RIGHT, "198.51.100.7").status_code == 302


def test_one_name_that_is_tried_from_many_addresses_is_stopped(person: Callable[..., Any]) -> None:
    found = [attempt("ann", address=f"198.51.100.{number}").status_code for number in range(PER_NAME + 1)]
    assert found == [200] * PER_NAME + [429]
    person(name="bob")
    assert attempt("bob", RIGHT, "198.51.100.1").status_code == 302


def test_signing_in_does_not_clear_what_the_address_has_guessed(person: Callable[..., Any]) -> None:
    """Or a guesser with an account of their own would go on for ever."""
    for number in range(PER_ADDRESS):
        assert attempt(f"nobody{number}").status_code == 200
        if number % 10 == 0:
            assert attempt("ann", RIGHT).status_code == 302
    assert attempt("ann", RIGHT).status_code == 429


def test_many_networks_of_one_host_are_one_address() -> None:
    found = [attempt(f"nobody{number}", address=f"2001:db8::{number:x}").status_code for number in range(PER_ADDRESS)]
    assert set(found) == {200}
    assert attempt("ann", RIGHT, "2001:db8::ffff").status_code == 429
    assert attempt("ann", RIGHT, "2001:db8:0:1::1").status_code == 302


def test_behind_a_proxy_the_client_is_whom_the_proxy_names(settings: Any) -> None:
    settings.BEHIND_PROXY = True
    for number in range(PER_ADDRESS):
        forged = f"203.0.113.{number}, 192.0.2.77"
        assert attempt(f"nobody{number}", address="127.0.0.1", HTTP_X_FORWARDED_FOR=forged).status_code == 200
    others = {"address": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.78"}
    assert attempt("ann", RIGHT, "127.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.77").status_code == 429
    assert attempt("ann", RIGHT, **others).status_code == 302
    settings.BEHIND_PROXY = False
    for number in range(PER_ADDRESS):
        assert attempt(f"nobody{number}", HTTP_X_FORWARDED_FOR=f"203.0.113.{number}").status_code == 200
    assert attempt("ann", RIGHT, HTTP_X_FORWARDED_FOR="203.0.113.99").status_code == 429


def test_what_is_remembered_is_bounded_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "MAX_COUNTS", 20)
    for number in range(30):
        attempt(f"nobody{number}", address=f"192.0.2.{number}")
        assert SignInCount.objects.count() <= 20
    assert "nobody" not in str(list(SignInCount.objects.values()))
    SignInCount.objects.update(ends_at=timezone.now())
    sign_in_forget()
    assert not SignInCount.objects.exists()


PREPARE = """
from django.contrib.auth import get_user_model
get_user_model().objects.create_user("ann", password="a long secret")
"""


def test_two_web_processes_count_together_what_comes_at_the_same_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    migrate(data)
    finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE)

    def one(address: str) -> int:
        with httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_S) as browser:
            browser.get("/sign-in")
            form = {"username": "ann", "password": "a guess", "csrfmiddlewaretoken": browser.cookies["slipway_csrf"]}
            return browser.post("/sign-in", data=form).status_code

    web_process = ("-m", "daphne")
    with (
        listening(data, *web_process) as (first, _),
        listening(data, *web_process) as (second, _),
        ThreadPoolExecutor(6) as threads,
    ):
        found = list(threads.map(one, [first, second] * PER_NAME_AND_ADDRESS))
    assert (found.count(200), found.count(429)) == (PER_NAME_AND_ADDRESS, PER_NAME_AND_ADDRESS)
