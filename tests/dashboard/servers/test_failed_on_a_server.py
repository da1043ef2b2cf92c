"""A server may be ready although a model failed on it: the page of servers says so."""

from collections.abc import Callable

from django.test import Client

from dashboard.models import ModelState, Server
from tests.dashboard.conftest import text_of


def test_the_page_of_servers_says_how_many_versions_failed(as_person: Callable[..., Client], server: Server) -> None:
    page = "/servers/"
    ModelState.objects.create(server=server, model_name="good", version=1, state="READY")
    assert "failed on this server" not in text_of(as_person(), page)
    bad = ModelState.objects.create(server=server, model_name="bad", version=1, state="UNAVAILABLE", failed=True)
    silent = ModelState.objects.create(server=server, model_name="silent", version=1, state="READY", condition="silent")
    found = text_of(as_person(), page)
    assert "1<small> of 3</small>" in found
    assert f'<a href="/servers/{server.name}/#loaded-title">2 versions failed on this server</a>' in found
    ModelState.objects.filter(pk__in=[bad.pk, silent.pk]).update(state="READY", condition="", failed=False)
    assert "failed on this server" not in text_of(as_person(), page)
