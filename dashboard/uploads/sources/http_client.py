"""A client that asks only the web addresses that an administrator allows.

Every address is compared with the allowed ones in its normal form, and so is the target of every redirect. A host's name is
resolved once: the addresses that it stands for are checked, and the connection is made to one of these. So neither a redirect
nor a name server can lead to link-local addresses, to a cloud's metadata service or, from another host, to this machine. A
request has a deadline, and a body has a least speed.
Source: RFC 9110, sections 13.1.5 (If-Range), 14.2 (Range), 15.3.7 (206) and 15.4 (redirects).
"""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from dashboard.shared.exceptions import Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.sources.base import PIECE_BYTES, Pieces
from repository.core.addresses import normal_path
from repository.core.errors import UnsafePath

CONNECT_S = 10.0
REQUEST_S = 30.0  # from the connection to the end of the headers, and from one piece of the body to the next
MOST_REDIRECTS = 5
LEAST_BYTES = 64 << 10  # a body that brings less in SPEED_S is given up
SPEED_S = 60.0
_REDIRECTS = (301, 302, 303, 307, 308)
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: its last 32 bits are an IPv4 address


class Location(NamedTuple):
    """A web address in its normal form. path: encoded, begins with "/". query: without "?"."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def text(self) -> str:
        """Return the address without its query, which may hold a signature."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    def is_below(self, allowed: "Location") -> bool:
        inside = self.path == allowed.path or self.path.startswith(f"{allowed.path.rstrip('/')}/")
        return self.origin == allowed.origin and inside


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer. headers: by their names in small letters. length: the bytes of the body, None if unknown."""

    status: int
    headers: Mapping[str, str]
    length: int | None
    location: Location
    _response: http.client.HTTPResponse

    def body(self) -> Pieces:
        """Yield the body. Raises Unavailable if it breaks off, or comes too slowly."""
        began, window = time.monotonic(), 0
        try:
            while piece := self._response.read1(PIECE_BYTES):
                window += len(piece)
                yield piece
                now = time.monotonic()
                if now - began > SPEED_S:
                    if window < LEAST_BYTES:
                        raise Unavailable(
                            f"{self.location.host} sends less than {LEAST_BYTES} bytes in {SPEED_S:.0f} s"
                        )
                    began, window = now, 0
            if self._response.length:
                raise Unavailable(f"the connection to {self.location.host} broke off")
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the connection to {self.location.host} broke off") from error


_PORTS = {"http": 80, "https": 443}


def parse_location(address: str) -> Location:
    """Read a web address. Raises Invalid at the field `address`."""
    try:
        parts = urllib.parse.urlsplit(address)
        port = parts.port
        path = normal_path(parts.path or "/")
    except (ValueError, UnsafePath) as error:
        raise Invalid.at("address", f"this is not a web address: {error}") from None
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in _PORTS or not host or not address.isascii() or not address.isprintable() or " " in address:
        raise Invalid.at("address", "expected an address such as https://host/path, in ASCII and without spaces")
    if "@" in parts.netloc:
        raise Invalid.at("address", "the address holds a user's name or password; leave them out")
    return Location(parts.scheme, host, port or _PORTS[parts.scheme], path, parts.query)


@contextmanager
def answer_to(
    location: Location,
    allowed: Sequence[Location],
    headers: Mapping[str, str],
    secrets: Mapping[str, str] | None = None,
) -> Iterator[Answer]:
    """Send GET to an allowed address, follow redirects to allowed addresses, and yield the answer.

    secrets: headers that only the first origin gets. Raises Forbidden for an address that is not allowed, and for 401 and 403;
    NotFound for 404, 410 and 416; Invalid for other refusals; Unavailable for errors of the network and of the server.
    """
    first = location
    for _ in range(MOST_REDIRECTS + 1):
        _refuse_other_place(location, allowed, is_redirect=location is not first)
        more = secrets if secrets and location.origin == first.origin else {}
        with _response_to(location, {"Accept-Encoding": "identity", **headers, **more}) as response:
            target = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not target:
                _refuse_failure(response.status, location)
                yield _answer(response, location)
                return
        location = parse_location(urllib.parse.urljoin(f"{location.text}?{location.query}", target))
    raise Invalid(f"{first.host} redirects more than {MOST_REDIRECTS} times")


@contextmanager
def answer_as_it_is(
    location: Location,
    allowed: Sequence[Location],
    method: str,
    headers: Mapping[str, str],
    body: Iterable[bytes] | None = None,
) -> Iterator[Answer]:
    """Send a request to an allowed address, and yield the answer, whatever its status; no redirect is followed.

    body: `headers` tells its length. Raises Forbidden for an address that is not allowed, Unavailable if the network fails.
    """
    _refuse_other_place(location, allowed, is_redirect=False)
    with _response_to(location, {"Accept-Encoding": "identity", **headers}, method, body) as response:
        yield _answer(response, location)


def _answer(response: http.client.HTTPResponse, location: Location) -> Answer:
    names = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, names, response.length, location, response)


def _refuse_other_place(location: Location, allowed: Sequence[Location], *, is_redirect: bool) -> None:
    if any(location.is_below(one) for one in allowed):
        return
    if is_redirect:
        raise Forbidden(
            f"the address redirects to {location.host}, which is not allowed; an administrator can allow it"
        )
    raise Forbidden("this address may not be read; an administrator allows addresses by SLIPWAY_SOURCE_URLS")


def _refuse_failure(status: int, location: Location) -> None:
    if status in (404, 410, 416):  # 416: the file is shorter than the part that was asked for
        raise NotFound(f"{location.host} has nothing at this address (status {status})")
    if status == 429 or status >= 500:
        raise Unavailable(f"{location.host} cannot answer now (status {status}); try again later")
    if status in (401, 403):
        raise Forbidden(f"{location.host} refuses access to this address (status {status})")
    if status not in (200, 206):
        raise Invalid(f"{location.host} answered with status {status}, where 200 was expected")


@contextmanager
def _response_to(
    location: Location, headers: Mapping[str, str], method: str = "GET", body: Iterable[bytes] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = CheckedConnection(location)
    target = location.path + (f"?{location.query}" if location.query else "")
    try:
        try:
            connection.connect()
            # A body may take long; each of its pieces has the time limit of the socket.
            with deadline(connection, REQUEST_S) if body is None else nullcontext():
                try:
                    connection.request(method, target, body=body, headers=dict(headers))
                except (BrokenPipeError, ConnectionResetError):
                    if body is None:
                        raise
                    # The server may have refused the body, and said why, before it had read it all.
                response = connection.getresponse()
        except ssl.SSLError as error:
            raise Unavailable(f"no safe connection to {location.host} can be made: {error.reason or 'TLS'}") from None
        except TimeoutError:
            raise Unavailable(f"{location.host} does not answer in time") from None
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{location.host} does not answer ({type(error).__name__})") from None
        with response:  # it keeps the socket open after its connection has been closed
            yield response
    finally:
        connection.close()


IP = ipaddress.IPv4Address | ipaddress.IPv6Address


class CheckedConnection(http.client.HTTPConnection):
    """A connection to one of the checked addresses of a host. refuses: says of an address of the host that it is none."""

    def __init__(self, location: Location, refuses: Callable[[IP, str], bool] | None = None) -> None:
        super().__init__(location.host, location.port, timeout=REQUEST_S)
        self._location = location
        self._refuses = refuses or is_refused

    def connect(self) -> None:
        family, address = _checked_address(self._location, self._refuses)
        connected = socket.socket(family, socket.SOCK_STREAM)
        try:
            connected.settimeout(CONNECT_S)
            connected.connect(address)
            connected.settimeout(REQUEST_S)
            if self._location.scheme == "https":
                connected = ssl.create_default_context().wrap_socket(connected, server_hostname=self._location.host)
        except BaseException:
            connected.close()
            raise
        self.sock = connected


def _checked_address(
    location: Location, refuses: Callable[[IP, str], bool]
) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Resolve a host, and return the first address that may be connected to. Raises Forbidden if there is none."""
    try:
        found = socket.getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unavailable(f"the host {location.host} is not known") from None
    for family, _, _, _, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not refuses(ip, location.host):
            return family, (str(address[0]), location.port)
    raise Forbidden(f"the host {location.host} stands for an address that is never read")


def is_refused(ip: IP, host: str) -> bool:
    """Return whether an address is link-local, of a metadata service, or of this machine though the host does not say so."""
    if isinstance(ip, ipaddress.IPv6Address) and (within := embedded(ip)) is not None:
        return is_refused(within, host)
    if ip.is_loopback:
        return not _is_this_machine(host)
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved or ip in _METADATA


def embedded(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, or None."""
    nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
    return ip.ipv4_mapped or ip.sixtofour or nat64


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def deadline(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """End a connection whose request takes longer, even if a byte comes now and then: the block raises TimeoutError."""
    over = threading.Event()

    def end() -> None:
        over.set()
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
