"""Posts JSON to an address outside this machine and its networks.

The host's name is resolved once, each address that it stands for is checked, and the connection is made to one of the checked
ones. Redirects are not followed. An administrator lists addresses inside by SLIPWAY_ALERT_ADDRESSES.
"""

import http.client
import ipaddress
import ssl
from collections.abc import Mapping
from functools import partial

from django.conf import settings

from dashboard.models import AlertChannel
from dashboard.shared.choices import ChannelKind
from dashboard.shared.exceptions import Forbidden, Invalid, Unavailable
from dashboard.uploads.sources.http_client import IP, CheckedConnection, Location, deadline, embedded, parse_location

POST_S = 12.0  # from the connection to the end of the answer's head
_MOST_ANSWER = 64 << 10


def post(address: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Post a body, and return if the answer's status is 2xx.

    Raises Invalid if this is no web address, Forbidden if it is inside this machine or its networks and not listed, and
    Unavailable for everything that may be better later.
    """
    location = parse_location(address)
    connection = CheckedConnection(location, partial(_refuses, is_listed(location)))
    try:
        with deadline(connection, POST_S):
            connection.connect()
            target = location.path + (f"?{location.query}" if location.query else "")
            connection.request("POST", target, body=body, headers={"User-Agent": "Slipway", **headers})
            with connection.getresponse() as response:
                response.read(_MOST_ANSWER)
                status = response.status
    except Forbidden:
        raise Forbidden(_INSIDE.format(location.host)) from None
    except ssl.SSLError as error:
        raise Unavailable(f"no safe connection to {location.host} can be made: {error.reason or 'TLS'}") from None
    except TimeoutError:
        raise Unavailable(f"{location.host} does not answer in time") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{location.host} does not answer ({type(error).__name__})") from None
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise Unavailable(f"{location.host} answered with status {status}, where 200 was expected")


_INSIDE = "{} is inside this machine or its networks; an administrator lists such addresses by SLIPWAY_ALERT_ADDRESSES"


def check_address(address: str) -> Location:
    """Return a web address that messages may be posted to, as far as it says so itself.

    Raises Invalid or Forbidden, at the field `address`. A name is resolved, and checked again, when something is posted.
    """
    location = parse_location(address)
    try:
        ip = ipaddress.ip_address(location.host)
    except ValueError:
        inside = location.host == "localhost" or location.host.endswith(".localhost")
    else:
        inside = _refuses(False, ip, location.host)
    if inside and not is_listed(location):
        raise Invalid.at("address", _INSIDE.format(location.host))
    if location.scheme != "https" and not is_listed(location):
        raise Invalid.at(
            "address", "expected an address that begins with https://, so that nobody on the way reads along"
        )
    return location


def is_listed(location: Location) -> bool:
    return any(location.is_below(parse_location(one)) for one in settings.ALERT_ADDRESSES)


def _refuses(listed: bool, ip: IP, host: str) -> bool:
    """Return whether an address may not be connected to. listed: whether an administrator lists the web address."""
    if isinstance(ip, ipaddress.IPv6Address) and (within := embedded(ip)) is not None:
        return _refuses(listed, within, host)
    if ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return True
    return not listed and not ip.is_global


def shown_address(channel: AlertChannel) -> str:
    """Return a channel's address as people may see it: that of Slack's kind is a secret, and so is any query."""
    if channel.kind == ChannelKind.EMAIL:
        return channel.address
    location = parse_location(channel.address)
    if channel.kind == ChannelKind.SLACK:
        return f"{location.scheme}://{location.host}/…"
    return location.text + ("?…" if location.query else "")
