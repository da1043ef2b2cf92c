"""`manage.py environments`: lists, adds, changes and removes environments, their servers, and what they want."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.access.authorisation import SYSTEM
from dashboard.catalog.selectors import model_get
from dashboard.fleet import selectors as select
from dashboard.fleet import services
from dashboard.fleet.checks import CONNECTIONS, Check, check_server, server_add_checked
from dashboard.fleet.sources import check_source
from dashboard.servers.selectors import server_get
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence
from dashboard.templatetags.slipway import sentence

_TEXTS = (
    "dns_name",
    "kubernetes_service",
    "kubernetes_address",
    "kubernetes_ca_file",
    "control_header",
    *services.FILES,
)
_NUMBERS = ("http_port", "grpc_port", "metrics_port")


class Command(BaseCommand):
    requires_system_checks = []
    help = "List, add, change and remove environments, their servers, and what they want. It acts as the system."

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
        for action in ("want", "unwant"):
            wish = actions.add_parser(action, help=f"{action} a model in an environment")
            wish.add_argument("environment")
            wish.add_argument("model")
            if action == "want":
                wish.add_argument("--release", type=int, help="its number; without it always the newest")

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
