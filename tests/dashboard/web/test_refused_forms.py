"""A form whose view answers with a page: the browser stays at the form's address, from which each link leads on to the page."""

import re
from collections.abc import Callable

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from dashboard.models import Version
from tests.dashboard.web.test_pages import pages


def title_of(page: str) -> str:
    found = re.search(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    return found[1] if found else ""


def test_each_page_that_answers_a_form_is_found_from_the_address_of_the_form(
    relu: Version, as_person: Callable[..., Client]
) -> None:
    administrator = as_person(is_superuser=True)
    found = set()
    for path, pattern in pages():
        with transaction.atomic():
            answer = administrator.post(path)
            transaction.set_rollback(True)
        title = title_of(answer.content.decode())
        if not title or "parts/error_body.html" in [one.name for one in answer.templates]:
            continue
        found.add(pattern.name)
        page = administrator.get(f"{path}?page=2", follow=True)
        assert (page.status_code, title_of(page.content.decode())) == (200, title), path
        assert page.request["QUERY_STRING"] == "page=2", path
    assert found >= {"environment_new", "quota_new", "token_new", "person_new", "environment_server_check"}


@pytest.mark.django_db
def test_who_may_not_send_the_form_is_not_led_on(as_person: Callable[..., Client]) -> None:
    address = reverse("environment_change", args=["production"])
    assert as_person().get(address).status_code == 403
    assert as_person(is_superuser=True).get(address)["Location"] == "/environments/production/"
