"""`manage.py environments`: lists, adds, changes and removes environments, their servers and wishes; deploys releases."""

import sys
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.access.authorisation import SYSTEM
from dashboard.catalog.selectors import model_get
from dashboard.deployments import policies
from dashboard.deployments import services as deploy
from dashboard.deployments.selectors import deployment_get, deployments
from dashboard.fleet import selectors as select
from dashboard.fleet import services
from dashboard.fleet.checks import CONNECTIONS, Check, check_server, server_add_checked
from dashboard.fleet.sources import check_source
from dashboard.kubernetes import selectors as cluster
from dashboard.kubernetes.events import KINDS
from dashboard.kubernetes.services import replicas_set
from dashboard.models import Deployment, Model
from dashboard.releases.selectors import release_get
from dashboard.servers.selectors import server_get
from dashboard.shared.choices import DeploymentState
from dashboard.shared.exceptions import Conflict, DashboardError
from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence
from dashboard.templatetags.slipway import sentence

_TEXTS = (
    "dns_name",
    "kubernetes_service",
    "kubernetes_selector",
    "kubernetes_address",
    "kubernetes_ca_file",
    "control_header",
    *services.FILES,
)
_NUMBERS = ("http_port", "grpc_port", "metrics_port", "replicas_min", "replicas_max")
_ACTS = {
    "stop": deploy.deployment_stop,
    "continue": deploy.deployment_continue,
    "go-back": deploy.deployment_return,
}
_LISTED = 20
_CLUSTER = {
    "pods": "the pods of an environment in Kubernetes, and why one is not ready",
    "replicas": "their number, and why it changed",
    "scale": "set their number, within the bounds of the environment",
}


class Command(BaseCommand):
    requires_system_checks = []
    help = (
        "List, add, change and remove environments, their servers and wishes; deploy releases. It acts as the system."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, parser_class=CommandParser)
        actions.add_parser("list", help="the environments and their servers")
        for action in ("add", "change"):
            _settings(actions.add_parser(action, help=f"{action} an environment"))
        actions.add_parser("remove", help="remove an environment with its servers").add_argument("name")
        server = actions.add_parser("add-server", help="check a server, and add it")
        for name in ("environment", "name", "address"):
            server.add_argument(name)
        server.add_argument("--grpc", default="", metavar="HOST:PORT")
        server.add_argument("--metrics", default="", metavar="URL")
        server.add_argument("--unchecked", action="store_true", help="add it whatever its check says")
        actions.add_parser("remove-server", help="remove a server").add_argument("name")
        actions.add_parser("check", help="check a server again").add_argument("name")
        source = actions.add_parser("check-source", help="look up the servers of a DNS name or Kubernetes service")
        source.add_argument("name")
        for action, said in _CLUSTER.items():
            parser = actions.add_parser(action, help=said)
            parser.add_argument("name")
            if action == "scale":
                parser.add_argument("replicas", type=int)
        for action in ("want", "unwant"):
            wish = actions.add_parser(action, help=f"{action} a model in an environment")
            wish.add_argument("environment")
            wish.add_argument("model")
            if action == "want":
                wish.add_argument("--release", type=int, help="its number; without it always the newest")
        _deployments(actions)

    def handle(self, *args: object, **options: Any) -> None:
        with one_sentence():
            check_release()
        try:
            getattr(self, f"act_{options['action'].replace('-', '_')}")(options)
        except DashboardError as error:
            raise CommandError(sentence(error.message)) from None

    def act_list(self, options: dict[str, Any]) -> None:
        for environment in select.environments():
            kind = "driven" if environment.driven else "only observed"
            found = f", found by {environment.source}" if environment.source else ""
            self.stdout.write(f"{environment.name} ({kind}{found})")
            if environment.lookup_error:
                self.stdout.write(f"  {sentence(environment.lookup_error)}")
            for one in select.standings(environment):
                state = getattr(one.server, "state", None)
                models = f"{one.served} of {one.wanted} models" if environment.driven else "observed"
                word = state.state if state is not None else "not watched yet"
                self.stdout.write(f"  {one.server.name}  {one.server.http_url}  {word}  {models}  {one.held}".rstrip())

    def act_add(self, options: dict[str, Any]) -> None:
        services.environment_create(name=options["name"], actor=SYSTEM, **_given(options))

    def act_change(self, options: dict[str, Any]) -> None:
        environment = select.environment_get(options["name"])
        services.environment_update(environment=environment, actor=SYSTEM, **_given(options))

    def act_remove(self, options: dict[str, Any]) -> None:
        services.environment_delete(environment=select.environment_get(options["name"]), actor=SYSTEM)

    def act_add_server(self, options: dict[str, Any]) -> None:
        given = {name: options[name] for name in ("name", "address", "grpc", "metrics")}
        server = services.server_new(environment=select.environment_get(options["environment"]), **given)
        server_add_checked(server=server, actor=SYSTEM, unchecked=options["unchecked"])

    def act_remove_server(self, options: dict[str, Any]) -> None:
        services.server_remove(server=server_get(options["name"]), actor=SYSTEM)

    def act_check(self, options: dict[str, Any]) -> None:
        self._tell(check_server(server_get(options["name"]), CONNECTIONS))

    def act_check_source(self, options: dict[str, Any]) -> None:
        self._tell(check_source(select.environment_get(options["name"])))

    def act_pods(self, options: dict[str, Any]) -> None:
        environment = select.environment_get(options["name"])
        known = cluster.replicas_of(environment)
        for one in cluster.pod_standings(environment, known.pods):
            pod = one.pod
            where = f"{pod['node'] or 'no node'}  {pod['zone']}".rstrip()
            said = sentence(pod["said"]) if pod["said"] else ""
            line = f"{pod['name']}  {pod['label']}  {where}  {pod['restarts']} restarts  {said}"
            self.stdout.write(line.rstrip())
        for trouble in known.trouble:
            self.stdout.write(sentence(trouble))

    def act_replicas(self, options: dict[str, Any]) -> None:
        environment = select.environment_get(options["name"])
        known = cluster.replicas_of(environment)
        if known.wanted is not None:
            self.stdout.write(f"{known.ready} of {known.wanted} ready")
        for trouble in known.trouble:
            self.stdout.write(sentence(trouble))
        for one in cluster.replica_events(environment)[:_LISTED]:
            self.stdout.write(f"{one.at:%Y-%m-%d %H:%M:%S}  {KINDS[one.kind]}  {sentence(one.said)}")

    def act_scale(self, options: dict[str, Any]) -> None:
        environment = select.environment_get(options["name"])
        replicas_set(environment=environment, replicas=options["replicas"], actor=SYSTEM)

    def _tell(self, found: Check) -> None:
        for line in (f"{found.kind} {found.version}".strip(), found.said, *found.advice):
            if line:
                self.stdout.write(sentence(line))
        if found.problems:
            raise CommandError(" ".join(map(sentence, found.problems)))

    def act_want(self, options: dict[str, Any]) -> None:
        environment, model = select.environment_get(options["environment"]), model_get(options["model"])
        services.wanted_set(environment=environment, model=model, actor=SYSTEM, release=options["release"])

    def act_unwant(self, options: dict[str, Any]) -> None:
        environment, model = select.environment_get(options["environment"]), model_get(options["model"])
        services.wanted_remove(environment=environment, model=model, actor=SYSTEM)

    def act_deploy(self, options: dict[str, Any]) -> None:
        self._deploy(model_get(options["model"]), options["release"], options)

    def act_promote(self, options: dict[str, Any]) -> None:
        source, model = select.environment_get(options["source"]), model_get(options["model"])
        wish = select.wishes(source).filter(model=model).first()
        if wish is None or wish.release is None:
            raise Conflict(f"environment {source.name} has chosen no release of '{model.name}'")
        self._deploy(model, wish.release.begun.number, options)

    def _deploy(self, model: Model, release: int, options: dict[str, Any]) -> None:
        given = {name: options[name] for name in ("at_once", "order", "leave_out", "reason")}
        environment = select.environment_get(options["environment"])
        made = deploy.deployment_start(environment=environment, model=model, release=release, actor=SYSTEM, **given)
        self.stdout.write(_line(made))
        if options["wait"]:
            self._follow(made)

    def _follow(self, deployment: Deployment) -> None:
        """Write each change until the deployment ends or stops. Raises CommandError unless it is done."""
        said: dict[str, str] = {}
        while True:
            found = deployment_get(deployment.pk)
            now = {step.server.name: step.get_state_display() for step in found.steps.select_related("server")}
            for name, state in now.items():
                if said.get(name) != state:
                    self.stdout.write(f"  {name}  {state.lower()}")
            said = now
            if found.state == DeploymentState.DONE:
                return
            if found.state != DeploymentState.RUNNING:
                raise CommandError(sentence(f"it is {found.get_state_display().lower()}: {found.error}".rstrip(": ")))
            time.sleep(0.5)

    def act_deployments(self, options: dict[str, Any]) -> None:
        environment = select.environment_get(options["environment"]) if options["environment"] else None
        for one in deployments(environment)[:_LISTED]:
            self.stdout.write(_line(one))

    def act_deployment(self, options: dict[str, Any]) -> None:
        found = deployment_get(options["number"])
        if options["leave_out"]:
            deploy.deployment_leave_out(deployment=found, server=options["leave_out"], actor=SYSTEM)
        if options["act"]:
            _ACTS[options["act"]](deployment=found, actor=SYSTEM)
        found = deployment_get(found.pk)
        self.stdout.write(_line(found))
        for step in found.steps.select_related("server"):
            self.stdout.write(f"  {step.server.name}  {step.get_state_display().lower()}  {step.error}".rstrip())

    def act_requirements(self, options: dict[str, Any]) -> None:
        environment, model = select.environment_get(options["environment"]), model_get(options["model"])
        release = release_get(model, options["release"])
        asked = policies.requirements(environment=environment, release=release, actor=SYSTEM)
        for one in asked:
            self.stdout.write(f"{'met' if one.met else 'missing'}  {sentence(one.said)}")
        if not all(one.met for one in asked):
            raise CommandError(f"Release {release.number} of '{model.name}' does not go to {environment.name} yet.")


def _line(deployment: Deployment) -> str:
    what = f"release {deployment.release.number} of {deployment.model.name} to {deployment.environment.name}"
    return f"{deployment.pk}  {what}  {deployment.get_state_display().lower()}  {deployment.error}".rstrip()


def _deployments(actions: Any) -> None:
    start = actions.add_parser("deploy", help="bring a release to the servers of an environment, one after another")
    promote = actions.add_parser("promote", help="deploy the release that another environment wants")
    promote.add_argument("source", help="the other environment")
    for parser in (start, promote):
        parser.add_argument("environment")
        parser.add_argument("model")
        parser.add_argument(
            "--at-once", type=int, default=1, metavar="N", help="the most servers that change at a time"
        )
        parser.add_argument("--order", nargs="+", default=[], metavar="SERVER", help="servers that come first")
        parser.add_argument("--leave-out", nargs="+", default=[], metavar="SERVER", help="servers that do not answer")
        parser.add_argument("--reason", default="")
        parser.add_argument("--wait", action="store_true", help="until it ends; fail if it stops")
    start.add_argument("release", type=int)
    asked = actions.add_parser(
        "requirements", help="what an environment asks of a release; fail if something is missing"
    )
    for name in ("environment", "model"):
        asked.add_argument(name)
    asked.add_argument("release", type=int)
    actions.add_parser("deployments", help=f"the last {_LISTED}").add_argument("environment", nargs="?")
    one = actions.add_parser("deployment", help="show, stop, continue or end a deployment")
    one.add_argument("number", type=int)
    one.add_argument("act", nargs="?", choices=list(_ACTS))
    one.add_argument("--leave-out", metavar="SERVER", help="go on without a server, before the act")


def _settings(parser: CommandParser) -> None:
    parser.add_argument("name")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--driven", dest="driven", action="store_true", default=None)
    kind.add_argument("--observed", dest="driven", action="store_false", help="somebody else loads and unloads there")
    wants = parser.add_mutually_exclusive_group()
    wants.add_argument("--everything", dest="everything", action="store_true", default=None)
    wants.add_argument("--chosen", dest="everything", action="store_false", help="it wants only what `want` names")
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument("--tls", dest="tls", action="store_true", default=None, help="for servers that are found")
    tls.add_argument("--no-tls", dest="tls", action="store_false")
    for name in services.SECRETS:
        said = f"a file with the {name.replace('_', ' ')}, - for standard input"
        parser.add_argument(f"--{name.replace('_', '-')}-file", metavar="PATH", help=said)
    for name in _TEXTS:
        parser.add_argument(f"--{name.replace('_', '-')}")
    for name in _NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given. Secrets are never arguments, because every account can read command lines."""
    names = (*_TEXTS, *_NUMBERS, "driven", "everything", "tls")
    given = {name: options[name] for name in names if options[name] is not None}
    for name in services.SECRETS:
        if (path := options[f"{name}_file"]) is None:
            continue
        try:
            given[name] = sys.stdin.read() if path == "-" else Path(path).read_text()
        except (OSError, UnicodeDecodeError):
            raise CommandError(f"The file of the {name.replace('_', ' ')}, {path}, cannot be read.") from None
    return given
