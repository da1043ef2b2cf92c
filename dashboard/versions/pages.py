"""What may be done to the versions of a model: make one live, go back, archive, restore, note."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from dashboard.access.authorisation import Right, requires
from dashboard.catalog import selectors as select
from dashboard.releases.selectors import release_get, way_back
from dashboard.shared.choices import VersionState
from dashboard.versions import services as version_services
from dashboard.versions.moves import version_archive as archive
from dashboard.versions.moves import version_restore as restore
from dashboard.web.pages import act


@require_POST
@requires(Right.OPERATE)
def version_make_live(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    done = f"Version {number} is being made live. The present one serves until it is ready."
    return act(request, version_services.release_promote, done, "model_versions", name, version=version)


@require_POST
@requires(Right.OPERATE)
def model_go_back(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    target = way_back(model)
    done = f"Going back to release {target.number}." if target else "Going back."
    return act(request, version_services.release_go_back, done, "model_versions", name, model=model)


@require_POST
@requires(Right.OPERATE)
def release_go_back(request: HttpRequest, name: str, number: int) -> HttpResponse:
    model = select.model_get(name)
    given = {"model": model, "release": release_get(model, number)}
    done = f"Going back to release {number}. What serves now goes on until it is ready."
    return act(request, version_services.release_go_back, done, "model_versions", name, **given)


@require_POST
@requires(Right.OPERATE)
def version_archive(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    archived = version.state == VersionState.ARCHIVED
    service = restore if archived else archive
    done = f"Version {number} is {'restored; it is not live by that' if archived else 'archived'}."
    return act(request, service, done, "model_versions", name, version=version)


@require_POST
@requires(Right.OPERATE)
def version_annotate(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    given = {"version": version, "note": request.POST.get("note", "")}
    done = f"The note of version {number} is saved."
    return act(request, version_services.version_annotate, done, "model_versions", name, **given)
