"""What a text of config.pbtxt says of releases: which versions it serves, by which names, with which shares of the requests;
and the same text for other ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from dashboard.models import Model
from dashboard.shared.choices import VersionState
from repository.config import edit as config_edit
from repository.config import model_config, version_policy
from repository.config.model_config import get_parameter
from repository.config.release import ALIASES, DEFAULT_ALIAS, aliases_of, aliases_problem, set_aliases
from repository.config.traffic import PARAMETER as TRAFFIC
from repository.config.traffic import policy_of, set_traffic, traffic_problem
from repository.core.errors import InvalidConfig
from repository.core.json_types import JsonObject


def published_numbers(model: Model) -> list[int]:
    return list(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))


def chosen_versions(model: Model, text: str, also: Iterable[int] = ()) -> list[int]:
    """Return the published versions that a configuration serves by its version policy; [] for one with mistakes.

    also: version numbers that count as published.
    """
    return _chosen(text, {*published_numbers(model), *also})


def _chosen(text: str, there: Iterable[int]) -> list[int]:
    try:
        return version_policy.select(model_config.parse(text), there)
    except InvalidConfig:
        return []


def answering(versions: Sequence[int], aliases: Mapping[str, int]) -> int:
    """Return the version that answers where a request names none; 0 without versions."""
    return aliases.get(DEFAULT_ALIAS, max(versions, default=0))


def pinned_text(model: Model, text: str, versions: Iterable[int], also: Iterable[int] = ()) -> str:
    """Return a text that serves exactly these versions, now and after others are published: it names them (`specific`).

    One that serves them already is left as it is, unless it serves all there are. also: numbers that count as published.
    """
    return _pinned(text, versions, {*published_numbers(model), *also})


def _pinned(text: str, versions: Iterable[int], there: Iterable[int]) -> str:
    wanted, config = sorted(versions), model_config.parse(text)
    if _chosen(text, there) == wanted and version_policy.describe(config) != "all versions":
        return text
    version_policy.set_specific(config, wanted)
    return config_edit.apply(text, config)


def live_text(model: Model, text: str, versions: Iterable[int], also: Iterable[int] = ()) -> str:
    """Return a text that serves these versions and those with a name; the highest of `versions` answers by default.

    A name of a version that is not published is left away: a server would refuse it. also: numbers that count as published.
    """
    wanted, there = set(versions), {*published_numbers(model), *also}
    named = {name: number for name, number in aliases_in(text).items() if number in there and name != DEFAULT_ALIAS}
    served = wanted | set(named.values())
    return _answered(text, named, served, max(wanted, default=0), there)


def answered_text(model: Model, text: str, versions: Iterable[int], answers: int) -> str:
    """Return a text that serves exactly these versions, of which `answers` answers where a request names none.

    Other names stay, but for those of versions that are not served.
    """
    served = set(versions)
    named = {name: number for name, number in aliases_in(text).items() if number in served and name != DEFAULT_ALIAS}
    return _answered(text, named, served, answers, {*published_numbers(model)})


def _answered(text: str, named: Mapping[str, int], served: set[int], answers: int, there: Iterable[int]) -> str:
    default = {DEFAULT_ALIAS: answers} if answers and answers != max(served) else {}
    return _pinned(with_aliases(text, {**named, **default}), served, there)


def aliases_in(text: str) -> dict[str, int]:
    """Return the aliases of a text; {} for one with mistakes."""
    try:
        config = model_config.parse(text)
        return {} if aliases_problem(get_parameter(config, ALIASES, {}), config) else aliases_of(config)
    except InvalidConfig:
        return {}


def with_aliases(text: str, aliases: Mapping[str, int]) -> str:
    """Return a text with these aliases and no others."""
    config = model_config.parse(text)
    set_aliases(config, aliases)
    return config_edit.apply(text, config)


# -- shares of the requests ---------------------------------------------------------------------------------------------
def traffic_in(text: str) -> JsonObject | None:
    """Return the traffic policy of a text; None where it has none, or mistakes."""
    try:
        config = model_config.parse(text)
        policy = get_parameter(config, TRAFFIC)
    except InvalidConfig:
        return None
    return policy if isinstance(policy, dict) and not traffic_problem(policy, config) else None


def with_traffic(text: str, policy: JsonObject | None) -> str:
    """Return a text with this traffic policy; None takes it away."""
    config = model_config.parse(text)
    set_traffic(config, None if policy is None else policy_of(policy))
    return config_edit.apply(text, config)


def without_traffic(text: str) -> str:
    """Return a text of which one version answers all; one with mistakes as it is."""
    try:
        return with_traffic(text, None)
    except InvalidConfig:
        return text


def shares_in(text: str, answers: int) -> dict[str, float]:
    """Return per cent of the requests without a version by what answers them; {} where one does all.

    answers: the version that does without a policy. A model on another server is named by its address.
    """
    policy = traffic_in(text)
    if policy is None:
        return {}
    weight = float(cast(float, policy.get("weight", 0)))
    stable, candidate = _arm(policy.get("stable", answers)), _arm(policy.get("candidate"))
    return {stable: round(100 - weight, 6), candidate: round(weight, 6)}


def _arm(arm: object) -> str:
    return str(arm.get("url", "")) if isinstance(arm, dict) else str(arm)
