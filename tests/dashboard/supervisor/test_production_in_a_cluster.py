"""SLIPWAY_KUBERNETES_SERVICE: each start lets production be the pods of that service."""

from typing import Any

import pytest

from dashboard.access.authorisation import SYSTEM
from dashboard.fleet.selectors import environment_get
from dashboard.fleet.services import environment_update
from dashboard.models import AuditEntry
from dashboard.models.environment import PRODUCTION
from dashboard.shared.exceptions import Invalid
from dashboard.shared.sealing import unseal
from dashboard.supervisor.setup import find_production

pytestmark = pytest.mark.django_db


def test_production_is_the_pods_of_the_service_with_the_installations_key(settings: Any) -> None:
    settings.KUBERNETES_SERVICE = "ml/servers"
    find_production()
    found = environment_get(PRODUCTION)
    assert (found.kubernetes_service, unseal(found.control_key)) == ("ml/servers", settings.SERVER_CONTROL_KEY)


def test_another_start_writes_only_what_has_changed(settings: Any) -> None:
    settings.KUBERNETES_SERVICE = "ml/servers"
    find_production()
    find_production()
    assert AuditEntry.objects.filter(action="environment.change").count() == 1
    settings.SERVER_CONTROL_KEY = "another-key-of-at-least-32-characters"
    settings.SECRET_KEY = "what sealed the key before cannot be read any more"
    find_production()
    assert unseal(environment_get(PRODUCTION).control_key) == settings.SERVER_CONTROL_KEY


def test_without_the_setting_production_stays(settings: Any) -> None:
    environment_update(environment=environment_get(PRODUCTION), actor=SYSTEM, dns_name="servers.example.org")
    find_production()
    assert environment_get(PRODUCTION).dns_name == "servers.example.org"


def test_a_name_that_is_no_service_is_refused(settings: Any) -> None:
    settings.KUBERNETES_SERVICE = "servers"
    with pytest.raises(Invalid, match="namespace"):
        find_production()
