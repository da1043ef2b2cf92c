"""The page of a server's memory, which the server's own page shows as a part: stacked bars, and the same figures in tables."""

from itertools import accumulate
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.servers.memory import DRAWN, Device, server_memory
from dashboard.servers.selectors import server_get
from dashboard.shared.exceptions import DashboardError
from dashboard.web.addresses import get
from dashboard.web.pages import respond

LISTED = 100  # rows of a table; the API has all
_SHADES = 2


class Piece(NamedTuple):
    """A piece of a bar. x, width: in per cent of the bar. kind: a class of memory.css."""

    label: str
    bytes: int
    kind: str
    x: float = 0.0
    width: float = 0.0
    evictable: bool = False
    version: int = 0


class Drawn(NamedTuple):
    """A device with its two bars: of the whole device, and of what the server holds. rest: the versions without a row."""

    device: Device
    whole: list[Piece]
    inside: list[Piece]
    rest: int


@get("servers/<slug:name>/memory", Right.VIEW)
def server_memory_page(request: HttpRequest, name: str) -> HttpResponse:
    server = server_get(name)
    context: dict[str, object] = {"server": server}
    try:
        picture = server_memory(server)
    except DashboardError as error:
        context["trouble"] = error.message
    else:
        context["devices"] = [drawn(device) for device in picture.devices]
        context |= {"fits": picture.fits[:LISTED], "more_fits": len(picture.fits[LISTED:]), "listed": f":{LISTED}"}
    return respond(request, "servers/memory", context)


def drawn(device: Device) -> Drawn:
    """Return the bars of a device. A piece for each of the DRAWN largest versions, one for the others, one for the rest."""
    whole = [
        Piece("Others", device.others, "others"),
        Piece("This server", device.server, "server"),
        Piece("Available", device.available, "free"),
    ]
    inside = [
        Piece(one.model, one.bytes, f"shade-{index % _SHADES}", evictable=one.evictable, version=one.version)
        for index, one in enumerate(device.holders[:DRAWN])
    ]
    if others := device.holders[DRAWN:]:
        inside.append(Piece(f"{len(others)} more", sum(one.bytes for one in others), "more"))
    inside.append(Piece("Server itself", device.itself, "itself"))
    return Drawn(device, _placed(whole), _placed(inside), max(0, len(device.holders) - LISTED))


def _placed(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with their places in the bar, one after the other."""
    total = sum(piece.bytes for piece in pieces) or 1
    ends = [0, *accumulate(piece.bytes for piece in pieces)]
    return [
        piece._replace(x=100 * at / total, width=100 * piece.bytes / total)
        for piece, at in zip(pieces, ends, strict=False)
    ]
