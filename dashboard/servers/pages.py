"""Pages of inference servers: states, events, logs, and the restart."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.servers import selectors as select
from dashboard.servers.consumers import PROCESSES
from dashboard.servers.holdings import said_of
from dashboard.servers.services import server_restart
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond

CARDS = 20  # the number of servers on a page of the list
EVENTS = 30
SHOWN = 100  # the number of versions on a page, in the order of _ORDER
_ORDER = {word: place for place, word in enumerate(("failed", "loading", "unloading", "ready", "asleep"))}


@get("servers/", Right.VIEW)
def servers(request: HttpRequest) -> HttpResponse:
    page = page_of(request, select.servers(), CARDS)
    counts = select.version_counts(page)
    rows = [(server, counts[server.pk], said_of(server)) for server in page]
    return respond(request, "servers/servers", {"rows": rows, "page": page, "running": select.processes()})


@get("servers/<slug:name>/", Right.VIEW)
def server(request: HttpRequest, name: str) -> HttpResponse:
    found = select.server_get(name)
    states = sorted(select.model_states(server=found), key=lambda row: _ORDER.get(row.word, len(_ORDER)))
    context = {
        "server": found,
        "states": states[:SHOWN],
        "held": said_of(found),
        "more_states": len(states[SHOWN:]),
        "events": select.server_events(server=found)[:EVENTS],
        "code": select.running_code(found),
        "socket": f"/ws/servers/{found.name}/log/",
        "processes": PROCESSES,
        "inference_open": found.bundled and not settings.REQUIRE_TOKENS,
    }
    return respond(request, "servers/server", context)


@post("servers/<slug:name>/restart", Right.ADMINISTER, name="server_restart")
def restart(request: HttpRequest, name: str) -> HttpResponse:
    found = select.server_get(name)
    done = "The server is restarting. Requests under way are finished first, and every model is loaded again automatically."
    return call_service(request, server_restart, done, "server", name, server=found)
