"""Which other servers a rollout may name: the addresses in the file of SLIPWAY_TRAFFIC_REMOTES, never the headers in it."""

from django.conf import settings

from repository.config.listed_servers import Address, ListedServer, listed_for, read_listed
from repository.core.errors import RepositoryError


def remotes_listed() -> list[str]:
    """Return the addresses that the server may call, [] without a file, and for one that it would refuse."""
    return list(_listed())


def is_listed(url: str) -> bool:
    """Return whether the server may call an address."""
    try:
        return listed_for(Address.of(url), _listed().values()) is not None
    except RepositoryError:
        return False


def _listed() -> dict[str, ListedServer]:
    try:
        return read_listed(settings.TRAFFIC_REMOTES) if settings.TRAFFIC_REMOTES is not None else {}
    except RepositoryError:
        return {}
