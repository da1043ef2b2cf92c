"""Reads of deployments."""

from django.db.models import QuerySet

from dashboard.models import Deployment, ReleaseSpan, ServerEnvironment
from dashboard.shared.exceptions import NotFound


def deployments(environment: ServerEnvironment | None = None) -> QuerySet[Deployment]:
    """Return the deployments, of one environment or of all; the newest first."""
    rows = Deployment.objects.select_related("environment", "model", "release", "earlier").defer(
        "model__fingerprint", "release__text", "earlier__text"
    )
    return rows if environment is None else rows.filter(environment=environment)


def deployment_get(number: int) -> Deployment:
    """Return a deployment. Raises NotFound."""
    try:
        return deployments().get(pk=number)
    except Deployment.DoesNotExist:
        raise NotFound(f"there is no deployment {number}") from None


def served_now(deployment: Deployment) -> dict[int, int]:
    """Return the number of the release that each server of a deployment serves now, by the server's id."""
    servers = deployment.steps.values("server")
    spans = ReleaseSpan.objects.filter(model=deployment.model_id, server__in=servers, ended_at=None)
    return dict(spans.values_list("server", "release__number"))
