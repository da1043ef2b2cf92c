"""The pages of rollouts: the form, one rollout with its figures and story, all rollouts of a model, and mismatches."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.text import capfirst

from dashboard.access.authorisation import CLIENT_DATA, Right, actor_of
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import model_get
from dashboard.models import Model, Rollout
from dashboard.releases.rollout_states import under_way
from dashboard.releases.selectors import newest_release
from dashboard.releases.services import changed_by_hand
from dashboard.rollouts import selectors as select
from dashboard.rollouts import services
from dashboard.rollouts.advance import last_request_in_words
from dashboard.rollouts.differences import differences_of, shown_tensors
from dashboard.rollouts.form import KINDS, METRICS, STICKY, Form
from dashboard.rollouts.picture import outage, picture_of, story
from dashboard.rollouts.remotes import remotes_listed
from dashboard.servers.selectors import server_get
from dashboard.shared.choices import RolloutKind
from dashboard.shared.exceptions import DashboardError, status_of
from dashboard.web.addresses import get, get_and_post, post
from dashboard.web.pages import call_service, page_of, respond
from repository.config.remote_protocols import REMOTE_PROTOCOLS

_ENDS = ("rollout.abort", "rollout.roll_back", "rollout.unload_old")  # actions whose summaries say why a rollout ended
_OPEN = 200  # the most rollouts under way that are listed
_NUMBERS = 50  # the most versions that may be chosen, the newest ones


@get_and_post("models/<str:name>/rollouts/new", Right.OPERATE)
def rollout_new(request: HttpRequest, name: str) -> HttpResponse:
    """Show the form of a rollout, or start the rollout. A button that only changes the form shows it again, as typed."""
    model = model_get(name)
    if request.method == "GET":
        kind = request.GET.get("kind", "")
        fresh = Form.fresh(
            kind if kind in RolloutKind.values else RolloutKind.CANARY, request.GET.get("candidate", "")[:18]
        )
        return _form(request, model, fresh)
    form, what = Form.typed(request.POST), request.POST.get("do", "start")
    if what.startswith("kind:"):
        form.choose(what.removeprefix("kind:"))
    elif what.startswith("add:"):
        form.add(what.removeprefix("add:"))
    else:
        return _start(request, model, form)
    return _form(request, model, form)


def _start(request: HttpRequest, model: Model, form: Form) -> HttpResponse:
    (candidate, stable), plan = form.arms(), form.plan()
    if form.wrong or candidate is None:
        return _form(request, model, form, 400)
    try:
        rollout = services.rollout_start(
            model=model,
            actor=actor_of(request),
            candidate=candidate,
            stable=stable,
            kind=form.kind,
            plan=plan,
            override=request.POST.get("override", ""),
        )
    except DashboardError as error:
        form.refuse(error)
        return _form(request, model, form, status_of(error))
    messages.success(request, f"The rollout of {rollout.candidate_words} has begun.")
    return redirect("model_releases", model.name)


def _form(request: HttpRequest, model: Model, form: Form, status: int = 200) -> HttpResponse:
    newest = newest_release(model)
    answers = newest.answers if newest else 0
    context = {
        **model_context(model.name, "releases"),
        "form": form,
        "answers": answers,
        "numbers": sorted(model.published_numbers(), reverse=True)[:_NUMBERS],
        "listed": remotes_listed(),
        "running": under_way(model),
        "kinds": KINDS,
        "metrics": METRICS,
        "stickies": STICKY,
        "protocols": {kind.name: kind.title for kind in REMOTE_PROTOCOLS.values()},
    }
    return render(request, "rollouts/new.html", context, status=status)


@get("rollouts/", Right.VIEW, name="rollouts")
def all_rollouts(request: HttpRequest) -> HttpResponse:
    """Show the rollouts of all models: those under way, each with a button to undo it, and those that ended."""
    ended = select.rollouts_of_all().filter(ended_at__isnull=False)
    context = {"open": select.rollouts_unfinished()[:_OPEN], "page": page_of(request, ended), "outage": outage()}
    return respond(request, "rollouts/all", context)


@get("models/<str:name>/rollouts/", Right.VIEW)
def model_rollouts(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "releases")
    page = page_of(request, select.rollouts(head["model"]))
    return respond(request, "rollouts/rollouts", {**head, "page": page, "rollouts": page})


@get("models/<str:name>/rollouts/<str:rollout>/", Right.VIEW)
def model_rollout(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    """Show one rollout: its state, its plan, and its history of acts."""
    head = model_context(name, "releases")
    found = select.rollout_get(head["model"], rollout)
    done = list(story(found))
    context = {
        **head,
        "picture": picture_of(found),
        "rollout": found,
        "whole": True,
        "story": done,
        "ended_otherwise": found.ended_at is not None and not (done and done[-1].action in _ENDS),
        "by_server": select.figures_by_server(found),
        "unlike": select.mismatches(found).count(),
    }
    return respond(request, "rollouts/rollout", context)


@get("models/<str:name>/rollouts/<str:rollout>/chart", Right.VIEW)
def rollout_chart(request: HttpRequest, name: str, rollout: str) -> JsonResponse:
    """Answer with both arms over time, on all servers or the one that ?server= names, and with the times of its steps."""
    found = select.rollout_get(model_get(name), rollout)
    servers, asked = select.reporting_servers(found), request.GET.get("server", "")
    server = server_get(asked) if asked else None
    steps = [
        {
            "at": entry.at.timestamp(),
            "text": entry.summary,
            "bad": entry.action in ("rollout.abort", "rollout.roll_back"),
        }
        for entry in story(found)
    ]
    named = {"servers": [one.name for one in servers], "server": server.name if server else ""}
    until = timezone.now().timestamp() if found.under_way else None
    return JsonResponse({**select.history(found, server), "steps": steps, "until": until, **named})


# -- acts ----------------------------------------------------------------------------------------------------------------
def _get_rollout(name: str, rollout: str) -> Rollout:
    return select.rollout_get(model_get(name), rollout)


def _step(request: HttpRequest) -> int | None:
    """Return the step that the page showed, so that an outdated page does not take a second step."""
    typed = request.POST.get("step", "")
    return int(typed) if typed.isdecimal() and len(typed) < 6 else None


@post("models/<str:name>/rollouts/<str:rollout>/advance", Right.OPERATE)
def rollout_advance(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    found = _get_rollout(name, rollout)
    done = f"{found.next_weight:g} % of requests go to {found.candidate_words}." if found.next_weight else "Done."
    given = {"rollout": found, "step": _step(request)}
    return call_service(request, services.rollout_advance, done, "model_releases", name, **given)


@post("models/<str:name>/rollouts/<str:rollout>/pause", Right.OPERATE)
def rollout_pause(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    done = "Paused: it stays at its share until you resume it."
    return call_service(
        request, services.rollout_pause, done, "model_releases", name, rollout=_get_rollout(name, rollout)
    )


@post("models/<str:name>/rollouts/<str:rollout>/resume", Right.OPERATE)
def rollout_resume(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    done = "Resumed: steps come by themselves again."
    return call_service(
        request, services.rollout_resume, done, "model_releases", name, rollout=_get_rollout(name, rollout)
    )


@post("models/<str:name>/rollouts/<str:rollout>/promote", Right.OPERATE)
def rollout_promote(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    found = _get_rollout(name, rollout)
    done = f"{capfirst(found.candidate_words)} answers everything now."
    given = {"rollout": found, "step": _step(request)}
    return call_service(request, services.rollout_promote, done, "model_releases", name, **given)


@post("models/<str:name>/rollouts/<str:rollout>/abort", Right.OPERATE)
def rollout_abort(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    found = _get_rollout(name, rollout)
    kept = (
        " What had been changed in config.pbtxt by hand is kept in the activity."
        if changed_by_hand(found.model)
        else ""
    )
    done = f"{capfirst(found.stable_words)} answers everything again.{kept}"
    return call_service(request, services.rollout_abort, done, "model_releases", name, rollout=found)


@post("models/<str:name>/rollouts/<str:rollout>/return", Right.OPERATE)
def rollout_return(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    """Give the requests back to the server that a rollout replaced, and mirror them to its replacement."""
    found = _get_rollout(name, rollout)
    given = {"model": found.model, "kind": RolloutKind.SHADOW, "candidate": found.candidate, "stable": found.stable}
    plan = {"shadow": shadow} if (shadow := found.plan.get("shadow")) else None
    done = f"{capfirst(found.stable_words)} answers everything again."
    return call_service(request, services.rollout_start, done, "model_releases", name, **given, plan=plan)


@post("models/<str:name>/rollouts/<str:rollout>/keep-old", Right.OPERATE)
def rollout_keep_old(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    found, typed = _get_rollout(name, rollout), request.POST.get("days", "").strip().replace(",", ".")
    days = float(typed) if typed.replace(".", "", 1).isdecimal() and len(typed) < 12 else 0.0
    done = f"{capfirst(found.stable_words)} stays loaded for {days:g} days from now."
    return call_service(request, services.rollout_keep_old, done, "model_releases", name, rollout=found, days=days)


@post("models/<str:name>/rollouts/<str:rollout>/unload-old", Right.OPERATE)
def rollout_unload_old(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    found = _get_rollout(name, rollout)
    done = f"{capfirst(found.stable_words)} is being unloaded."
    given = {"rollout": found, "last_request": last_request_in_words(found)}
    return call_service(request, services.rollout_unload_old, done, "model_releases", name, **given)


# -- mismatches ------------------------------------------------------------------------------------------------------------
@get("models/<str:name>/rollouts/<str:rollout>/unlike", Right.VIEW)
def rollout_mismatches(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    head = model_context(name, "releases")
    found = select.rollout_get(head["model"], rollout)
    shadow = found.plan.get("shadow")
    context = {
        **head,
        "rollout": found,
        "page": page_of(request, select.mismatches(found)),
        "shadow": shadow,
        "private": shadow is not None and shadow.get("keep") is False,
    }
    return respond(request, "rollouts/mismatches", context)


@get("models/<str:name>/rollouts/<str:rollout>/unlike/<int:pk>", CLIENT_DATA)
def rollout_mismatch(request: HttpRequest, name: str, rollout: str, pk: int) -> HttpResponse:
    """Show one request with both answers. The page needs the right to operate, because it shows a client's inputs."""
    head = model_context(name, "releases")
    found = select.rollout_get(head["model"], rollout)
    mismatch = select.mismatch_get(found, pk)
    context = {
        **head,
        "rollout": found,
        "mismatch": mismatch,
        "inputs": shown_tensors(mismatch.data.get("inputs")),
        "outputs": differences_of(mismatch.data.get("stable"), mismatch.data.get("candidate")),
    }
    return render(request, "rollouts/mismatch.html", context)


@post("models/<str:name>/rollouts/<str:rollout>/unlike/forget", Right.OPERATE)
def rollout_forget(request: HttpRequest, name: str, rollout: str) -> HttpResponse:
    given = {"rollout": _get_rollout(name, rollout)}
    done = "The requests are forgotten, with their inputs."
    return call_service(request, services.mismatches_forget, done, "model_releases", name, **given)
