"""Writes of environments, of their servers, and of what each environment wants."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.fleet.discovery import MOST_SERVERS
from dashboard.kubernetes.services import look_forget
from dashboard.models import (
    Deployment,
    DeploymentPolicy,
    Model,
    Release,
    Server,
    ServerEnvironment,
    ServerState,
    WantedRelease,
)
from dashboard.models.deployment import OPEN
from dashboard.models.environment import PRODUCTION
from dashboard.releases.overrides import override_of
from dashboard.releases.selectors import newest_release, release_get
from dashboard.servers.credentials import context
from dashboard.servers.selectors import answers
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import DesiredState
from dashboard.shared.exceptions import Conflict, Invalid, NotFound
from dashboard.shared.sealing import seal

# The settings of an environment, without its name and its key. A copy of them is in the audit trail.
SETTINGS = (
    "driven",
    "everything",
    "dns_name",
    "http_port",
    "grpc_port",
    "metrics_port",
    "tls",
    "control_header",
    "kubernetes_service",
    "kubernetes_selector",
    "kubernetes_address",
    "kubernetes_ca_file",
    "replicas_min",
    "replicas_max",
)
# Secrets, which are sealed. None for the present one, "" for none.
SECRETS = ("control_key", "kubernetes_token")
SOURCES = ("kubernetes_service", "kubernetes_selector", "dns_name")
FILES = ("ca_file", "certificate", "certificate_key")
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,100}")  # a header that both HTTP and gRPC can carry
MOST_TOKEN = 8000  # characters of a token for Kubernetes
_SERVICE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
# Kubernetes itself says what is wrong with labels.
_SELECTOR = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[A-Za-z0-9(!][A-Za-z0-9_./=!,() -]{0,229}")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)


def environment_create(*, name: str, actor: Actor, **given: object) -> ServerEnvironment:
    """Make an environment. given: some of SETTINGS, SECRETS and FILES.

    Raises Forbidden, Invalid; Conflict if the name is taken.
    """
    require(actor, Right.ADMINISTER)
    environment = ServerEnvironment(name=_slug(name, 40))
    # A new environment wants nothing until somebody says what.
    _apply(environment, {"everything": False, **given})
    with transaction.atomic():
        try:
            with transaction.atomic():
                environment.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"there is an environment named '{name}' already") from None
        _record(actor, "environment.create", f"Added environment {name}", after=_settings(environment))
    return environment


def environment_with(*, environment: ServerEnvironment, actor: Actor, **given: object) -> ServerEnvironment:
    """Return an environment with other settings, which are not saved, to check them. Raises Forbidden, Invalid."""
    require(actor, Right.ADMINISTER)
    found = ServerEnvironment.objects.get(pk=environment.pk)
    _apply(found, given)
    return found


def environment_update(*, environment: ServerEnvironment, actor: Actor, **given: object) -> ServerEnvironment:
    """Change the given ones of an environment's SETTINGS, SECRETS and FILES. Raises Forbidden, Invalid, Conflict."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        found = ServerEnvironment.objects.select_for_update().get(pk=environment.pk)
        before, source = _settings(found), found.source
        _apply(found, given)
        if found.everything and not before["everything"]:
            _refuse_governed(found)
        if found.source and not source and found.servers.filter(bundled=False, named_at=None).exists():
            field = next(name for name in SOURCES if getattr(found, name))
            raise Invalid.at(field, "it has listed servers: remove them before a name or service finds its servers")
        if not found.source or found.source != source:
            found.servers.exclude(named_at=None).delete()
            found.lookup_error = ""
            look_forget(found)
        found.save()
        after = _settings(found) | {name: "changed" for name in SECRETS if given.get(name) is not None}
        changed = {name for name in after if before.get(name) != after[name]}
        _record(
            actor,
            "environment.change",
            f"Changed environment {found.name}",
            {name: before.get(name, "") for name in changed},
            {name: after[name] for name in changed},
        )
    return found


def environment_delete(*, environment: ServerEnvironment, actor: Actor) -> None:
    """Remove an environment with its servers and their history. The servers go on with what they have loaded.

    Raises Conflict for production.
    """
    require(actor, Right.ADMINISTER)
    if environment.name == PRODUCTION:
        raise Conflict("production stays: the pages of models show it")
    with transaction.atomic():
        before = {**_settings(environment), "servers": [one.name for one in environment.servers.all()]}
        environment.delete()
        _record(actor, "environment.remove", f"Removed environment {environment.name}", before)


def server_new(*, environment: ServerEnvironment, name: str, address: str, grpc: str = "", metrics: str = "") -> Server:
    """Return the row of a new server, not saved, for `check` and `server_add`.

    address: as http://10.0.0.5:8000. grpc, metrics: "" for the ports 8001 and 8002 of that host. Raises Invalid.
    """
    if environment.source:
        raise Invalid.at("address", f"the servers of {environment.name} are found by {environment.source}")
    http_url, scheme, host = _address("address", address)
    metrics_url = (
        _address("metrics", metrics)[0] if metrics.strip() else f"{scheme}://{host}:{environment.metrics_port}"
    )
    grpc_url = grpc.strip() or f"{host}:{environment.grpc_port}"
    if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@]+):\d{1,5}", grpc_url) or len(grpc_url) > 300:
        raise Invalid.at("grpc", "the address for gRPC is a host and a port, as 10.0.0.5:8001")
    return Server(
        name=_slug(name, 64), environment=environment, http_url=http_url, grpc_url=grpc_url, metrics_url=metrics_url
    )


def server_add(*, server: Server, actor: Actor) -> Server:
    """Save the row of `server_new`. Raises Conflict if its name or address is taken."""
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        _refuse_taken(server)
        server.save(force_insert=True)
        ServerState.objects.create(server=server)
        _record(actor, "server.add", f"Added server {server.name}", after=_addresses(server))
    return server


def server_update(*, server: Server, actor: Actor, address: str, grpc: str = "", metrics: str = "") -> Server:
    """Give a listed server other addresses. Raises Conflict for a server that `up` has listed, or that was found."""
    require(actor, Right.ADMINISTER)
    _refuse_unlisted(server)
    assert server.environment is not None
    new = server_new(environment=server.environment, name=server.name, address=address, grpc=grpc, metrics=metrics)
    with transaction.atomic():
        before = _addresses(server)
        server.http_url, server.grpc_url, server.metrics_url = new.http_url, new.grpc_url, new.metrics_url
        _refuse_taken(server)
        server.save(update_fields=["http_url", "grpc_url", "metrics_url"])
        _record(actor, "server.change", f"Changed server {server.name}", before, _addresses(server))
    return server


def server_place(*, server: Server, zone: str, actor: Actor) -> Server:
    """Say in which zone a server runs, "" for none. A deployment never changes servers of two zones at once.

    Raises Conflict for a pod.
    """
    require(actor, Right.ADMINISTER)
    if server.named_at is not None and server.environment is not None and server.environment.in_kubernetes:
        raise Conflict(f"Kubernetes says in which zone {server.name} runs, by the label topology.kubernetes.io/zone")
    zone = zone.strip()
    if len(zone) > 64 or not zone.isprintable():
        raise Invalid.at("zone", "a zone has at most 64 printable characters, as eu-central-1a")
    with transaction.atomic():
        before, server.zone = server.zone, zone
        server.save(update_fields=["zone"])
        summary = f"Server {server.name} is in zone {zone}" if zone else f"Server {server.name} is in no zone"
        _record(actor, "server.place", summary, {"zone": before}, {"zone": zone})
    return server


def server_remove(*, server: Server, actor: Actor) -> None:
    """Remove a server and its history. It goes on with what it has loaded.

    Raises Conflict for a server that was found, and for a bundled one that is `local` or answers.
    """
    require(actor, Right.ADMINISTER)
    if not server.bundled or server.name == LOCAL or answers(server):
        _refuse_unlisted(server)
    with transaction.atomic():
        before = _addresses(server)
        server.delete()
        _record(actor, "server.remove", f"Removed server {server.name}", before)


def _refuse_governed(environment: ServerEnvironment, do: str = "deploy the release there") -> None:
    """Raise Conflict if the environment has a policy, which only deployments ask. do: what to do instead."""
    if DeploymentPolicy.objects.filter(environment=environment).exists():
        raise Conflict(f"environment {environment.name} has a policy: {do}")


def wanted_set(
    *, environment: ServerEnvironment, model: Model, actor: Actor, release: int | None = None
) -> WantedRelease:
    """Want a model in an environment. release: its number, None for always the newest.

    Raises Invalid if there is no such release, Conflict if its configuration has mistakes or a version is not published.
    """
    require(actor, Right.OPERATE)
    if not environment.driven:
        raise Conflict(f"somebody else drives {environment.name}: the dashboard only observes its servers")
    pinned = loadable_release(model, release) if release is not None else None
    with transaction.atomic():
        _refuse_deploying(environment, model)
        _refuse_governed(environment)
        before = WantedRelease.objects.select_for_update().filter(environment=environment, model=model).first()
        was = {} if before is None else {"release": before.release.number if before.release else "newest"}
        generation = next_generation(environment, model)
        row = wish_settle(environment=environment, model=model, release=pinned, generation=generation)
        said = "the newest release" if release is None else f"release {release}"
        summary = f"{environment.name} wants {said} of {model.name}"
        after = {"release": release if release is not None else "newest"}
        audit_record(actor=actor, action="environment.want", summary=summary, model=model, before=was, after=after)
    return row


def environment_pin(*, environment: ServerEnvironment, actor: Actor) -> ServerEnvironment:
    """Let an environment want exactly the releases that it wants now, so that a newer one reaches nobody by itself.

    No server loads anything: the generations stay.
    """
    require(actor, Right.ADMINISTER)
    with transaction.atomic():
        found = ServerEnvironment.objects.select_for_update().get(pk=environment.pk)
        rows = {row.model_id: row for row in found.wanted.all()}
        models = Model.objects.filter(wanted_in__environment=found)
        if found.everything:
            models = Model.objects.filter(desired_state=DesiredState.LOADED)
            found.wanted.exclude(model__in=models).delete()
        for model in models:
            row = rows.get(model.pk)
            release = (row.release if row is not None else None) or newest_release(model)
            generation = row.generation if row is not None else 0
            wish_settle(environment=found, model=model, release=release, generation=generation)
        found.everything = False
        found.save(update_fields=["everything"])
        _record(actor, "environment.pin", f"{found.name} wants exactly the releases that it wants now")
    return found


def wanted_remove(*, environment: ServerEnvironment, model: Model, actor: Actor) -> None:
    """Take a model out of an environment's wanted set. Raises NotFound if it is not in it.

    Where a policy holds what is wanted, this takes the right to administer, with which the policy itself could be removed.
    """
    require(actor, Right.OPERATE)
    with transaction.atomic():
        _refuse_deploying(environment, model)
        if not actor.may(Right.ADMINISTER):
            _refuse_governed(environment, "only an administrator takes a model out")
        if not WantedRelease.objects.filter(environment=environment, model=model).delete()[0]:
            raise NotFound(f"environment {environment.name} has no wish of its own for '{model.name}'")
        summary = f"{environment.name} has no wish of its own for {model.name} any more"
        audit_record(actor=actor, action="environment.unwant", summary=summary, model=model)


def wish_settle(
    *, environment: ServerEnvironment, model: Model, release: Release | None, generation: int
) -> WantedRelease:
    """Write what an environment wants of a model. It is part of an act that checks the right and leaves an audit entry."""
    row, _ = WantedRelease.objects.update_or_create(
        environment=environment, model=model, defaults={"release": release, "generation": generation}
    )
    return row


def next_generation(environment: ServerEnvironment, model: Model) -> int:
    """Return a generation that no wish for this model had before, even after it was taken out and put in again."""
    before = WantedRelease.objects.filter(environment=environment, model=model).aggregate(Max("generation"))
    deployed = Deployment.objects.filter(environment=environment, model=model)
    used = {**before, **deployed.aggregate(Max("steps__generation"))}
    return max(int(timezone.now().timestamp() * 1000), *(1 + (number or 0) for number in used.values()))


def _refuse_deploying(environment: ServerEnvironment, model: Model) -> None:
    """Raise Conflict while a deployment decides what the servers want of a model; none begins before the transaction ends."""
    ServerEnvironment.objects.select_for_update().filter(pk=environment.pk).first()
    if Deployment.objects.filter(environment=environment, model=model, state__in=OPEN).exists():
        raise Conflict(
            f"a deployment of '{model.name}' in {environment.name} is not over: go back, or let it end, before you change what "
            "is wanted"
        )


def loadable_release(model: Model, number: int) -> Release:
    """Return a release that servers can load. Raises Invalid if there is none, Conflict if it cannot be loaded."""
    try:
        release = release_get(model, number)
    except NotFound as error:
        raise Invalid.at("release", error.message) from None
    missing = sorted(set(release.versions) - set(model.published_numbers()))
    if missing:
        raise Conflict(
            f"release {number} of '{model.name}' needs version {missing[0]}, which is not in service any more"
        )
    if not override_of(release):
        raise Conflict(f"the configuration of release {number} of '{model.name}' has mistakes")
    return release


def _apply(environment: ServerEnvironment, given: Mapping[str, object]) -> None:
    """Set the given settings. Raises Invalid at the first that cannot be used."""
    address = environment.kubernetes_address
    for name, value in given.items():
        if name in SECRETS:
            if value is not None:
                setattr(environment, name, _sealed(name, str(value)))
        else:
            setattr(environment, name, value.strip() if isinstance(value, str) else value)
    if environment.name == PRODUCTION and not environment.driven:
        raise Invalid.at("driven", "production is driven, because the bundled server is in it")
    if environment.dns_name and not _HOST.fullmatch(environment.dns_name):
        raise Invalid.at(
            "dns_name", "a DNS name has letters, digits, hyphens and dots, as triton.prod.svc.cluster.local"
        )
    _check_kubernetes(environment)
    if environment.kubernetes_token and environment.kubernetes_address != address and not given.get("kubernetes_token"):
        raise Invalid.at("kubernetes_token", "the token goes to another address now: enter it again, or remove it")
    for name in ("http_port", "grpc_port", "metrics_port"):
        if not 0 < getattr(environment, name) < 65536:
            raise Invalid.at(name, "a port is a number from 1 to 65535")
    if not 0 <= environment.replicas_min <= MOST_SERVERS or not 0 <= environment.replicas_max <= MOST_SERVERS:
        raise Invalid.at("replicas_max", f"an environment has from 0 to {MOST_SERVERS} replicas")
    if environment.replicas_max and environment.replicas_min > environment.replicas_max:
        raise Invalid.at("replicas_min", "the least number of replicas is not above the most")
    if not _TOKEN.fullmatch(environment.control_header):
        raise Invalid.at("control_header", "the header of the key has letters, digits and hyphens")
    if any(len(getattr(environment, name)) > 500 for name in FILES):
        raise Invalid.at("ca_file", "a path has at most 500 characters")
    context(*(getattr(environment, name) for name in FILES))


def _check_kubernetes(environment: ServerEnvironment) -> None:
    given = [name for name in SOURCES if getattr(environment, name)]
    if len(given) > 1:
        said = "servers are found by a Kubernetes service, by labels of pods, or by a DNS name, not by two of them"
        raise Invalid.at(given[0], said)
    if environment.kubernetes_service and not _SERVICE.fullmatch(environment.kubernetes_service):
        raise Invalid.at("kubernetes_service", "a Kubernetes service is its namespace and its name, as prod/triton")
    if environment.kubernetes_selector and not _SELECTOR.fullmatch(environment.kubernetes_selector):
        raise Invalid.at(
            "kubernetes_selector",
            "labels of pods are their namespace and a label selector, as prod/app=triton,tier=gpu",
        )
    if environment.kubernetes_selector and environment.tls:
        raise Invalid.at(
            "tls", "certificates are checked for the name of a service: find the pods by a service for TLS"
        )
    if environment.kubernetes_address:
        text = environment.kubernetes_address
        text = text if "://" in text else f"https://{text}"
        environment.kubernetes_address, scheme, _ = _address("kubernetes_address", text)
        if scheme == "http" and environment.kubernetes_token:
            raise Invalid.at("kubernetes_address", "a token is sent over https only")
    if len(environment.kubernetes_ca_file) > 500:
        raise Invalid.at("kubernetes_ca_file", "a path has at most 500 characters")
    context(environment.kubernetes_ca_file, "", "")


def _settings(environment: ServerEnvironment) -> dict[str, object]:
    return {name: getattr(environment, name) for name in (*SETTINGS, *FILES)}


def _addresses(server: Server) -> dict[str, object]:
    return {"http_url": server.http_url, "grpc_url": server.grpc_url, "metrics_url": server.metrics_url}


def _sealed(name: str, secret: str) -> str:
    kind, most = ("control key", 300) if name == "control_key" else ("token", MOST_TOKEN)
    secret = secret.strip()
    if len(secret) > most or not secret.isascii() or (secret and not secret.isprintable()):
        raise Invalid.at(name, f"a {kind} has at most {most} printable ASCII characters")
    return seal(secret)


def _slug(name: str, most: int) -> str:
    try:
        validate_slug(name)
    except ValidationError:
        name = ""
    if not name or len(name) > most:
        raise Invalid.at("name", f"a name has letters, digits, hyphens and underscores, at most {most}")
    return name


def _address(field: str, text: str) -> tuple[str, str, str]:
    """Return an address as scheme://host:port, its scheme, and its host. Raises Invalid."""
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or len(text) > 300 or re.search(r"[\s\\]", text):
        raise Invalid.at(field, "an address is a scheme, a host and a port, as http://10.0.0.5:8000")
    if (
        parts.scheme not in ("http", "https")
        or parts.username
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
    ):
        raise Invalid.at(field, "an address has http or https, a host and a port, and nothing else")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}", parts.scheme, host


def _refuse_taken(server: Server) -> None:
    others = Server.objects.exclude(pk=server.pk)
    if others.filter(name=server.name).exists():
        raise Conflict(f"there is a server named '{server.name}' already")
    if (other := others.filter(http_url=server.http_url).first()) is not None:
        raise Conflict(f"server {other.name} has the address {server.http_url} already")


def _refuse_unlisted(server: Server) -> None:
    if server.bundled:
        raise Conflict(f"server {server.name} is bundled: `manage.py up` lists it")
    if server.named_at is not None:
        source = server.environment.source if server.environment is not None else ""
        raise Conflict(f"server {server.name} was found by {source}, which lists it")


def _record(
    actor: Actor,
    action: str,
    summary: str,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> None:
    audit_record(actor=actor, action=action, summary=summary, before=before, after=after)
