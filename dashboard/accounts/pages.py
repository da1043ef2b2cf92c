"""Sign-in, a person's own settings and API tokens, and, for administrators, other people's accounts."""

from datetime import timedelta
from typing import cast

from django.contrib import messages
from django.contrib.auth import get_user_model, update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from dashboard.access.authorisation import Right, actor_of, with_permissions
from dashboard.accounts import selectors as select
from dashboard.accounts.accounts import GRANTABLE, account_create, account_update
from dashboard.accounts.forms import TokenForm
from dashboard.accounts.tokens import token_create, token_revoke
from dashboard.models import ApiToken
from dashboard.shared.choices import TokenRight
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import THEMES, sentence
from dashboard.templatetags.units import duration
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of

SHOWN = 100  # the most accounts, or tokens, on one page
GRANT_LABELS = {
    "operate": "Load, unload, make live, configure",
    "upload_data": "Upload data formats",
    "upload_code": "Upload formats that can run code",
    "only_look": "Only look: send no requests either",
}


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the page again. After too many attempts, the status is 429, and the page says how long to wait."""
        wait = getattr(self.request, "sign_in_wait", 0)
        context = self.get_context_data(form=form, wait=duration(wait) if wait else "")
        response = self.render_to_response(context, status=429 if wait else 200)
        if wait:
            response["Retry-After"] = str(wait)
        return response


sign_in = SignIn.as_view()


@get("settings/", Right.VIEW)
def settings(request: HttpRequest) -> HttpResponse:
    return _settings(request)


def _settings(request: HttpRequest, **forms: object) -> HttpResponse:
    administers = actor_of(request).may(Right.ADMINISTER)
    people = page_of(request, User.objects.order_by("username"), SHOWN, by="people") if administers else None
    context = {
        "password_form": _password_form(request),
        "token_form": TokenForm(user=_user(request)),
        "tokens": page_of(request, select.tokens(_user(request)), SHOWN, by="tokens"),
        "right_labels": dict(TokenRight.choices),
        "people_page": people,
        "people": with_permissions(people) if people else None,
        "grantable": [(name, GRANT_LABELS[name]) for name in GRANTABLE],
        "theme_now": request.COOKIES.get("slipway_theme", "system"),
        "theme_choices": (("system", "As the system"), ("light", "Light"), ("dark", "Dark")),
        **forms,
    }
    return render(request, "accounts/settings.html", context, status=400 if forms and "new_token" not in forms else 200)


def _user(request: HttpRequest) -> User:
    """Return the signed-in person. LoginRequiredMiddleware ensures that there is one."""
    return cast(User, request.user)


def _password_form(request: HttpRequest, given: QueryDict | None = None) -> PasswordChangeForm:
    """Return Django's form without its autofocus, because the page has several forms."""
    form = PasswordChangeForm(_user(request), given)
    form.fields["old_password"].widget.attrs.pop("autofocus", None)
    return form


@post("settings/password", Right.VIEW, name="password", page="settings")
def password_change(request: HttpRequest) -> HttpResponse:
    form = _password_form(request, request.POST)
    if not form.is_valid():
        return _settings(request, password_form=form)
    form.save()
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password is changed. Other browsers are signed out.")
    return redirect("settings")


@post("settings/theme", Right.VIEW, name="theme")
def theme_set(request: HttpRequest) -> HttpResponse:
    response = redirect("settings")
    chosen = request.POST.get("theme")
    if chosen in THEMES:
        response.set_cookie("slipway_theme", chosen, max_age=timedelta(days=365), samesite="Lax")
    else:
        response.delete_cookie("slipway_theme")
    return response


@post("settings/tokens", Right.VIEW, page="settings")
def token_new(request: HttpRequest) -> HttpResponse:
    """Make a token, and show its text once."""
    form = TokenForm(request.POST, user=_user(request))
    if not form.is_valid():
        return _settings(request, token_form=form)
    days = form.cleaned_data["days"]
    try:
        token, secret = token_create(
            user=_user(request),
            actor=actor_of(request),
            name=form.cleaned_data["name"],
            rights=form.cleaned_data["rights"],
            expires_at=timezone.now() + timedelta(days=days) if days else None,
        )
    except DashboardError as error:
        form.add_error(None, sentence(error.message))
        return _settings(request, token_form=form)
    return _settings(request, new_token=token, new_secret=secret)


@post("settings/tokens/<int:pk>/revoke", Right.VIEW)
def token_end(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(ApiToken, pk=pk, user=request.user)
    done = f"Token {token.name} is revoked. Clients that use it are refused from now on."
    return call_service(request, token_revoke, done, "settings", token=token)


@post("settings/people", Right.ADMINISTER, page="settings")
def person_new(request: HttpRequest) -> HttpResponse:
    """Create an account with a first password, which the administrator hands over. An error is shown at its field."""
    name, password = request.POST.get("username", "").strip(), request.POST.get("password", "")
    rights = request.POST.getlist("permissions")
    try:
        account_create(actor=actor_of(request), username=name, password=password, permissions=rights)
    except DashboardError as error:
        field = error.problems[0].field if isinstance(error, Invalid) and error.problems else "username"
        refused = {"username": name, "permissions": rights, "errors": {field: sentence(error.message)}}
        return _settings(request, new_person=refused)
    messages.success(request, f"{name} can sign in with that password, and change it here.")
    return redirect("settings")


@post("settings/people/<int:pk>", Right.ADMINISTER)
def person_change(request: HttpRequest, pk: int) -> HttpResponse:
    person = get_object_or_404(get_user_model(), pk=pk)
    done = f"The rights of {person.get_username()} are changed."
    given: dict[str, object] = {
        "permissions": request.POST.getlist("permissions"),
        "is_active": "is_active" in request.POST,
    }
    if "groups" in request.POST:
        given["groups"] = request.POST["groups"].split(",")
    return call_service(request, account_update, done, "settings", user=person, **given)
