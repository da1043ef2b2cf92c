"""`slipway.traffic`: how a stable version and a candidate share the requests that name no version.

{"rollout": "r-7f3c", "candidate": 4, "weight": 5, "sticky": {"header": "x-user"}}

rollout     the name under which a server keeps the figures of a rollout, its breach and the arm of each client; a new name
            starts without them
candidate   a version that is served, or a model on another server (a Remote)
stable      a Remote; by default the version that would answer without a policy
weight      per cent of the requests that the candidate answers
sticky      requests with the same key stay on one arm; the key is the value of a header or parameter, or the id of the
            request; while the weight grows, keys move only from stable to the candidate
shadow      the candidate gets a copy of this per cent of the requests that stable answers, and the answers are compared
guardrails  limits; the candidate gets no more requests if it breaks one, by figures of at least `min_samples` requests in
            `window_s` seconds. `alpha` is the share of days on which chance alone may break a limit

The policy belongs to the whole model: no version's overlay may set it, and a serving model takes it without a reload.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.config.release import ALIASES, DEFAULT_ALIAS
from repository.config.remote_protocols import REMOTE_PROTOCOLS, WITH_BODIES
from repository.core.addresses import part_problem
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json, JsonObject

PARAMETER = "traffic"
# Metric of a guardrail -> the fields that it may have.
METRICS = {
    "errors": ("margin",),
    "latency": ("quantile", "ratio"),
    "disagreement": ("limit",),
    "prometheus": ("name", "url", "stable", "candidate", "ratio"),
}
STICKY = ("header", "parameter", "id")
MAX_GUARDRAILS = 20
MAX_DEPTH = 50  # the most levels of nested objects and lists

_EXAMPLE = 'an object such as {"rollout": "r-1", "candidate": 4, "weight": 5}'
_NAME = re.compile(r"[a-z0-9_.-]{1,64}", re.ASCII)
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # characters that UTF-8 or a database cannot store
_MAX_NUMBER = 2**63 - 1
_MAX_TEXT = 4096  # the most characters of a URL or a query


@dataclass(frozen=True, slots=True)
class Remote:
    """A model on another server. url: "http://host:port[/path]". model: the name of the model on that server; "" for the name
    of the local model. version: "" lets that server choose. request: the body to send, with
    "$INPUT" in place of the tensor INPUT. response: the path of each output in the answer. Not every protocol has these two."""

    url: str
    protocol: str = "v2"
    model: str = ""
    version: str = ""
    timeout_s: float = 10.0
    request: Json = None
    response: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sticky:
    """The value that ties a request to its arm. by: one of STICKY. name: the name of the header (lower case) or parameter."""

    by: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """The limits on the mismatches that are kept, with their inputs; the worst are kept."""

    count: int = 20
    bytes: int = 4 << 20
    days: float = 7


@dataclass(frozen=True, slots=True)
class Shadow:
    """share: per cent of stable's requests. absolute, relative: tolerances. keep: limits, or None if inputs are private."""

    share: float = 0.0
    absolute: float = 1e-4
    relative: float = 1e-3
    max_in_flight: int = 8
    keep: Keep | None = field(default_factory=Keep)


@dataclass(frozen=True, slots=True)
class Guardrail:
    """One limit of the candidate, relative to stable. metric: one of METRICS.

    errors: the share of failed requests may be larger by `margin`. latency: the `quantile` may be `ratio` times as long.
    disagreement: at most `limit`, as a share of the mirrored requests, may fail or differ by more than the tolerance.
    prometheus: the value may be `ratio` times as large; it is the metric `name` of this server, or the results of two queries
    to the Prometheus at `url`.
    """

    metric: str
    margin: float = 0.01
    quantile: float = 0.99
    ratio: float = 1.5
    limit: float = 0.02
    name: str = ""
    url: str = ""
    stable: str = ""
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class TrafficPolicy:
    """See the module's docstring."""

    rollout: str
    candidate: int | Remote
    stable: Remote | None = None
    weight: float = 0.0
    sticky: Sticky | None = None
    shadow: Shadow | None = None
    guardrails: tuple[Guardrail, ...] = ()
    min_samples: int = 200
    window_s: float = 300.0
    alpha: float = 0.001

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """Return the arms that are models on other servers."""
        return tuple(arm for arm in (self.stable, self.candidate) if isinstance(arm, Remote))

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the URLs of other servers that the policy calls, for remotes and for guardrails."""
        return (*(remote.url for remote in self.remotes), *(one.url for one in self.guardrails if one.url))


# -- read and written ----------------------------------------------------------------------------------------------------
def traffic_of(config: ModelConfig) -> TrafficPolicy | None:
    """Return the policy of a validated configuration, or None if it has no policy."""
    value = get_parameter(config, PARAMETER)
    return policy_of(value) if isinstance(value, dict) else None


def policy_of(value: JsonObject) -> TrafficPolicy:
    """Return the policy of a value in which `traffic_problem` finds no mistake."""
    fields = dict(value)
    candidate, stable, sticky, shadow = (fields.pop(name, None) for name in ("candidate", "stable", "sticky", "shadow"))
    guardrails = cast(list[JsonObject], fields.pop("guardrails", []))
    return TrafficPolicy(
        candidate=_remote(candidate) if isinstance(candidate, dict) else cast(int, candidate),
        stable=_remote(stable) if isinstance(stable, dict) else None,
        sticky=_sticky(sticky) if isinstance(sticky, dict) else None,
        shadow=_shadow(shadow) if isinstance(shadow, dict) else None,
        guardrails=tuple(Guardrail(**cast(dict[str, Any], one)) for one in guardrails),
        **cast(dict[str, Any], fields),
    )


def _remote(value: JsonObject) -> Remote:
    return Remote(**cast(dict[str, Any], value))


def _sticky(value: JsonObject) -> Sticky:
    by, name = next(iter(value.items()))
    return Sticky(by, name.lower() if by == "header" else name) if isinstance(name, str) else Sticky(by)


def _shadow(value: JsonObject) -> Shadow:
    fields = dict(value)
    keep = fields.pop("keep", {})
    kept = Keep(**cast(dict[str, Any], keep)) if isinstance(keep, dict) else None
    return Shadow(keep=kept, **cast(dict[str, Any], fields))


def set_traffic(config: ModelConfig, policy: TrafficPolicy | None) -> None:
    """Write the policy; None removes the parameter."""
    key = SLIPWAY_PREFIX + PARAMETER
    if policy is not None:
        config.parameters[key].string_value = json.dumps(as_json(policy))
    elif key in config.parameters:
        del config.parameters[key]


def as_json(policy: TrafficPolicy) -> JsonObject:
    """Return the value of the parameter, without fields whose values are the defaults."""
    value: JsonObject = {"rollout": policy.rollout, "candidate": _arm_json(policy.candidate)}
    if policy.stable is not None:
        value["stable"] = _arm_json(policy.stable)
    value["weight"] = policy.weight
    if policy.sticky is not None:
        value["sticky"] = {policy.sticky.by: policy.sticky.name or True}
    if policy.shadow is not None:
        value["shadow"] = _shadow_json(policy.shadow)
    if policy.guardrails:
        value["guardrails"] = [
            _changed(one, Guardrail(one.metric)) | {"metric": one.metric} for one in policy.guardrails
        ]
    plain = TrafficPolicy(policy.rollout, policy.candidate)
    for name in ("min_samples", "window_s", "alpha"):
        if getattr(policy, name) != getattr(plain, name):
            value[name] = getattr(policy, name)
    return value


def _arm_json(arm: int | Remote) -> Json:
    return arm if isinstance(arm, int) else {"url": arm.url, **_changed(arm, Remote(arm.url))}


def _shadow_json(shadow: Shadow) -> JsonObject:
    value = _changed(shadow, Shadow(keep=shadow.keep)) | {"share": shadow.share}
    if shadow.keep is None:
        value["keep"] = False
    elif kept := _changed(shadow.keep, Keep()):
        value["keep"] = kept
    return value


def _changed(one: Remote | Shadow | Keep | Guardrail, plain: Remote | Shadow | Keep | Guardrail) -> JsonObject:
    """Return the fields that differ from those of `plain`."""
    return {name: value for name in type(one).__slots__ if (value := getattr(one, name)) != getattr(plain, name)}


# -- mistakes ------------------------------------------------------------------------------------------------------------
# Returns the value that was expected, as the end of a sentence that begins with "expected"; "" for a valid value.
Check = Callable[[Json], str]


def traffic_problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the value of `slipway.traffic` alone; "" if there is none."""
    if not isinstance(value, dict):
        return f"expected {_EXAMPLE}"
    if wrong := _unsuitable(value):
        return wrong
    if wrong := _fields("", value, _POLICY, ("rollout", "candidate")) or _inner_problem(value):
        return wrong
    policy = policy_of(value)
    if policy.candidate == policy.stable:
        return "'stable' and 'candidate' are the same model of another server: give one another 'model' or 'version'"
    for index, guardrail in enumerate(policy.guardrails):
        if wrong := _guardrail_problem(guardrail, policy):
            return f"'guardrails[{index}]': {wrong}"
    default = _aliases(config).get(DEFAULT_ALIAS)
    if policy.stable is None and policy.candidate == default:
        return f"'candidate' is version {default}, which the alias 'default' means: name another version, or move the alias"
    return ""


def _unsuitable(value: Json) -> str:
    """Return why a part of a value cannot be written, shown or stored; "" if all parts can."""
    waiting = [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"expected no more than {MAX_DEPTH} levels of objects and lists in each other"
        if isinstance(one, dict):
            waiting += [(inner, depth + 1) for pair in one.items() for inner in pair]
        elif isinstance(one, list):
            waiting += [(inner, depth + 1) for inner in one]
        elif isinstance(one, str) and _NO_TEXT.search(one):
            return "expected text without the character NUL and without half of a surrogate pair"
    return ""


def unserved_candidate(config: ModelConfig, versions: Iterable[int]) -> str:
    """Return why the candidate cannot serve next to the stable version; "" if it can, or is on another server."""
    policy = traffic_of(config)
    if policy is None or not isinstance(policy.candidate, int):
        return ""
    served = sorted(versions)
    if policy.candidate not in served:
        there = ", ".join(map(str, served)) or "none"
        return (
            f"the candidate of rollout '{policy.rollout}' is version {policy.candidate}, which the version policy does not "
            f"serve (it serves {there}): have that version served, or take 'slipway.traffic' away"
        )
    if policy.stable is None and policy.candidate == _aliases(config).get(DEFAULT_ALIAS, served[-1]):
        return (
            f"the candidate of rollout '{policy.rollout}' is version {policy.candidate}, which answers already where none is "
            "named: let the alias 'default' name the stable version"
        )
    return ""


def _inner_problem(value: JsonObject) -> str:
    """Return the mistake in the objects of a policy; "" if there is none."""
    for name in ("stable", "candidate"):
        arm = value.get(name)
        if isinstance(arm, dict) and (wrong := _remote_problem(name, arm)):
            return wrong
    shadow = value.get("shadow")
    if isinstance(shadow, dict):
        keep = shadow.get("keep")
        wrong = _fields("shadow", shadow, _SHADOW, ("share",))
        if wrong or (isinstance(keep, dict) and (wrong := _fields("shadow.keep", keep, _KEEP, ()))):
            return wrong
    for index, guardrail in enumerate(cast(list[JsonObject], value.get("guardrails", []))):
        if wrong := _fields(f"guardrails[{index}]", guardrail, _fields_of(guardrail), ("metric",)):
            return wrong
    return ""


def _fields_of(guardrail: JsonObject) -> Mapping[str, Check]:
    """Return the fields that a guardrail with this metric may have."""
    names = METRICS.get(str(guardrail.get("metric")))
    return _GUARDRAIL if names is None else {name: _GUARDRAIL[name] for name in ("metric", *names)}


def _aliases(config: ModelConfig) -> JsonObject:
    """Return the aliases; {} if they are invalid."""
    try:
        value = get_parameter(config, ALIASES)
    except InvalidConfig:  # the rule of that parameter reports it
        return {}
    return value if isinstance(value, dict) else {}


def _fields(name: str, value: JsonObject, checks: Mapping[str, Check], required: tuple[str, ...]) -> str:
    """Return the mistake in the fields of an object; "" if there is none. `name`: the path of the object; "" for the policy."""
    inside = f"'{name}': " if name else ""
    for key in value:
        if key not in checks:
            return f"{inside}expected {', '.join(checks)}, not '{key[:80]}'"
    for key in required:
        if key not in value:
            return f"{inside}expected '{key}' in it"
    for key, one in value.items():
        if wrong := checks[key](one):
            return f"{inside}expected '{key}' to be {wrong}, not {json.dumps(one)[:80]}"
    return ""


def _number(low: float, high: float, *, above: bool = False, whole: bool = False) -> Check:
    """Return the check for a number from `low` (with `above`, greater than `low`) to `high`."""
    kind = "a whole number" if whole else "a number"
    wrong = f"{kind} {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:,.10g}"

    def check(value: Json) -> str:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return wrong
        return "" if (low < value if above else low <= value) and value <= high else wrong

    return check


def _text(value: Json) -> str:
    return "" if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT else f"a text of 1 to {_MAX_TEXT:,} characters"


def _one_of(choices: tuple[str, ...]) -> Check:
    return lambda value: "" if value in choices else f"one of {', '.join(choices)}"


def _rollout_problem(value: Json) -> str:
    right = isinstance(value, str) and _NAME.fullmatch(value)
    return "" if right else "a name of 1 to 64 characters of a-z, 0-9, '_', '.' and '-'"


def _url_problem(value: Json) -> str:
    wrong = 'a URL such as "http://host:8000"'
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable() or " " in value:
        return wrong
    try:
        parts = urlsplit(value)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or brackets that are not closed
        return wrong
    if right and (parts.query or parts.fragment or "@" in parts.netloc):
        return 'a URL such as "http://host:8000/path", without user, query and fragment'
    return "" if right else wrong


def _part_or_empty(value: Json) -> str:
    """Return the mistake in a model's name or version, which becomes a part of the URL's path; "" if it is valid or empty. The
    path must stay below the listed address."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return f"a text of at most {_MAX_TEXT:,} characters"
    return part_problem(value) if value else ""


def _response_problem(value: Json) -> str:
    right = isinstance(value, dict) and value and all(isinstance(path, str) and path for path in value.values())
    return "" if right else 'an object such as {"OUTPUT": "result.scores"}: where in the answer each output stands'


def _request_problem(value: Json) -> str:
    right = isinstance(value, dict | list) and '"$' in json.dumps(value)
    return "" if right else 'an object such as {"image": "$INPUT"}: "$" and an input\'s name where its values go'


_REMOTE: dict[str, Check] = {
    "url": _url_problem,
    "protocol": _one_of(tuple(REMOTE_PROTOCOLS)),
    "model": _part_or_empty,
    "version": _part_or_empty,
    "timeout_s": _number(0, 3600, above=True),
    "request": _request_problem,
    "response": _response_problem,
}


def _remote_problem(name: str, value: JsonObject) -> str:
    if wrong := _fields(name, value, _REMOTE, ("url",)):
        return wrong
    bodies = REMOTE_PROTOCOLS[str(value.get("protocol", "v2"))].bodies
    given = [key for key in ("request", "response") if key in value]
    if bodies == "required" and len(given) < 2:
        return f"'{name}': protocol \"{value['protocol']}\" needs 'request' and 'response'"
    if given and not bodies:
        taking = " or ".join(f'"{one.name}"' for one in WITH_BODIES)
        return f"'{name}': '{given[0]}' needs protocol {taking}"
    if len(given) == 1:
        return f"'{name}': expected 'request' and 'response', or neither"
    return ""


def _sticky_problem(value: Json) -> str:
    wrong = '{"header": "x-user"}, {"parameter": "user"} or {"id": true}'
    if not isinstance(value, dict) or len(value) != 1:
        return wrong
    by, name = next(iter(value.items()))
    if by == "id":
        return "" if name is True else wrong
    if by == "header":
        right = isinstance(name, str) and _HEADER.fullmatch(name.lower())
        return "" if right else '{"header": NAME} with the name of an HTTP header or a key of gRPC\'s metadata'
    if by == "parameter":
        named = _text(name)
        return f'{{"parameter": NAME}} with {named}' if named else ""
    return wrong


_KEEP: dict[str, Check] = {
    "count": _number(1, 1000, whole=True),
    "bytes": _number(1, 1 << 30, whole=True),
    "days": _number(0, 3650, above=True),
}
_SHADOW: dict[str, Check] = {
    "share": _number(0, 100),
    "absolute": _number(0, 1e30),
    "relative": _number(0, 1e30),
    "max_in_flight": _number(1, 1000, whole=True),
    "keep": lambda value: "" if value is False or isinstance(value, dict) else 'false or {"count": 20, "days": 7}',
}
_GUARDRAIL: dict[str, Check] = {
    "metric": _one_of(tuple(METRICS)),
    "margin": _number(0, 1),
    "quantile": _number(0, 0.9999, above=True),
    "ratio": _number(0, 1e6, above=True),
    "limit": _number(0, 1),
    "name": _text,
    "url": _url_problem,
    "stable": _text,
    "candidate": _text,
}


def _arm_problem(value: Json) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_NUMBER
    return (
        ""
        if whole or isinstance(value, dict)
        else 'the number of a version or {"url": "http://host:8000", "model": "name"}'
    )


def _guardrail_problem(guardrail: Guardrail, policy: TrafficPolicy) -> str:
    """Return the contradiction between a guardrail and its policy, or between its fields; "" if there is none."""
    if guardrail.metric == "disagreement" and policy.shadow is None:
        return "disagreement is counted where answers are compared: give 'shadow' with a 'share'"
    if guardrail.metric == "prometheus":
        if guardrail.url and not (guardrail.stable and guardrail.candidate):
            return "expected a query for 'stable' and one for 'candidate' with 'url'"
        if bool(guardrail.name) == bool(guardrail.url):
            return "expected either 'name', a metric of this server, or 'url' with the queries 'stable' and 'candidate'"
        if guardrail.name and (guardrail.stable or guardrail.candidate):
            return "'stable' and 'candidate' are queries to a Prometheus: give its 'url' in place of 'name'"
    return ""


def _guardrails_problem(value: Json) -> str:
    right = isinstance(value, list) and len(value) <= MAX_GUARDRAILS and all(isinstance(one, dict) for one in value)
    return "" if right else f'a list of at most {MAX_GUARDRAILS} objects such as {{"metric": "errors"}}'


_POLICY: dict[str, Check] = {
    "rollout": _rollout_problem,
    "candidate": _arm_problem,
    "stable": lambda value: (
        ""
        if isinstance(value, dict)
        else '{"url": "http://host:8000", "model": "name"}; left out, it is '
        "the version that the alias 'default' names"
    ),
    "weight": _number(0, 100),
    "sticky": _sticky_problem,
    "shadow": lambda value: "" if isinstance(value, dict) else 'an object such as {"share": 10}',
    "guardrails": _guardrails_problem,
    "min_samples": _number(1, 1e9, whole=True),
    "window_s": _number(1, 86_400),
    "alpha": _number(0, 0.5, above=True),
}
_PARTS = {"policy": _POLICY, "remote": _REMOTE, "shadow": _SHADOW, "keep": _KEEP, "guardrail": _GUARDRAIL}


def wrong_value(part: str, name: str, value: Json) -> str:
    """Return the expected value as the end of a sentence, such as "a number from 0 to 100"; "" for a valid value.

    part: the object that contains the value: policy, remote, shadow, keep or guardrail. name: the name of its field.
    """
    return _PARTS[part][name](value)
