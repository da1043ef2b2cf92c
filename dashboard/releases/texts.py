"""What a text of config.pbtxt says of releases: which versions it serves, by which names, and the same text for other ones."""

from collections.abc import Iterable, Mapping

from dashboard.models import Model
from dashboard.shared.choices import VersionState
from repository.config import edit as config_edit
from repository.config import model_config, version_policy
from repository.config.model_config import get_parameter
from repository.config.release import ALIASES, DEFAULT_ALIAS, aliases_of, aliases_problem, set_aliases
from repository.core.errors import InvalidConfig


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
    answers = max(wanted, default=0)
    default = {DEFAULT_ALIAS: answers} if wanted and answers != max(served) else {}
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
