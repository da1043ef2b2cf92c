"""The servers that a rollout may name: the addresses in the file of SLIPWAY_TRAFFIC_REMOTES, without its headers."""

from django.conf import settings

from dashboard.shared.exceptions import Invalid
from repository.config.listed_servers import Address, ListedServer, listed_for, read_listed
from repository.config.traffic import TrafficPolicy
from repository.core.errors import RepositoryError


def remotes_listed() -> list[str]:
    """Return the addresses that the server may call; [] if there is no file or it is invalid."""
    try:
        return list(_listed())
    except RepositoryError:
        return []


def refuse_unlisted(policy: TrafficPolicy) -> None:
    """Raise Invalid, at the arm or guardrail, if the bundled server may not call an address that a policy names."""
    urls = {name: getattr(arm, "url", "") for name, arm in (("stable", policy.stable), ("candidate", policy.candidate))}
    urls |= {f"guardrails[{index}]": guardrail.url for index, guardrail in enumerate(policy.guardrails)}
    for field, url in urls.items():
        if url:
            try:
                _refuse_unlisted(url)
            except RepositoryError as error:
                raise Invalid.at(field, error.message) from None


def _refuse_unlisted(url: str) -> None:
    address = Address.of(url)
    if settings.TRAFFIC_REMOTES is None:
        raise RepositoryError(
            f"'{url}' is another server, and none may be called: start the dashboard with SLIPWAY_TRAFFIC_REMOTES=FILE, a JSON "
            f'file with {{"{address.origin}": {{}}}}'
        )
    if listed_for(address, _listed().values()) is None:
        raise RepositoryError(
            f"'{url}' is not listed in the file of SLIPWAY_TRAFFIC_REMOTES: add \"{address.origin}\" to it first"
        )


def _listed() -> dict[str, ListedServer]:
    return read_listed(settings.TRAFFIC_REMOTES) if settings.TRAFFIC_REMOTES is not None else {}
