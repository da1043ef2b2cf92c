"""The form that starts a rollout: the typed text of each field, and the plan that they make.

A mistake is shown next to its field, and everything that was typed stays. A row of a list whose first field is empty is
ignored.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from django.http import QueryDict

from dashboard.models.rollout import Plan
from dashboard.rollouts.plan import MAX_BAKE_S, MAX_HOLD_DAYS, MAX_STEPS, default_plan
from dashboard.shared.choices import RolloutKind
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence
from dashboard.templatetags.units import duration
from repository.config.remote_protocols import REMOTE_PROTOCOLS, WITH_BODIES
from repository.config.traffic import Keep, Remote, Shadow, wrong_value
from repository.core.json_types import Json, JsonObject
from repository.core.quantities import three_digits

REMOTE = "remote"  # the choice of a model on another server as an arm
METRICS = (
    ("errors", "Errors: points above stable"),
    ("p50", "Latency p50: times stable’s"),
    ("p95", "Latency p95: times stable’s"),
    ("p99", "Latency p99: times stable’s"),
    ("disagreement", "Disagreement: % of answers"),
    ("metric", "Metric of this server: times stable’s"),
    ("query", "Prometheus query: times stable’s"),
)
STICKY = (
    ("", "No: each request by itself"),
    ("header", "Same header"),
    ("parameter", "Same parameter"),
    ("id", "Same request id"),
)
KINDS = (
    (RolloutKind.SHADOW, "Shadow", "Answers nobody. A share of requests is asked of the candidate too, and compared."),
    (
        RolloutKind.CANARY,
        "Canary",
        "Answers more and more requests, step by step, and is taken out where it does worse.",
    ),
    (RolloutKind.AB, "A/B test", "Answers a fixed share of requests until somebody ends it."),
)
_TEXTS = (
    *("candidate", "stable", "share", "stop_after", "by_hand", "hold_days", "sticky", "sticky_name"),
    *("shadow_share", "absolute", "relative", "private", "keep_count", "keep_days"),
    *("min_samples", "window_s", "alpha"),
)
_REMOTE = ("url", "protocol", "model", "version", "timeout_s", "request", "response")
_ARMS = ("stable", "candidate")
_STEP = ("weight", "bake")
_GUARDRAIL = ("metric", "limit", "name", "url", "stable", "candidate")
_LABELS = {
    "url": "Address",
    "protocol": "Protocol",
    "model": "Model",
    "version": "Version",
    "timeout_s": "Time-out",
    "request": "Request",
    "response": "Response",
}
_GUARDRAIL_LABELS = {
    "name": "Metric of this server",
    "url": "Address of a Prometheus",
    "stable": "Query of stable",
    "candidate": "Query of the candidate",
}
_UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:[.,]\d+)?)\s*([a-z]*)", re.ASCII)


@dataclass(slots=True)
class Row:
    """One step, or one guardrail, as typed. wrong: its mistake, a sentence."""

    values: dict[str, str]
    wrong: str = ""


@dataclass(slots=True)
class Form:
    """The contents of the form. values: field -> text. remotes: arm -> field -> text.

    errors: field -> reason; the key is "" for errors that belong to no field.
    """

    kind: str
    values: dict[str, str]
    remotes: dict[str, dict[str, str]]
    steps: list[Row]
    guardrails: list[Row]
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def fresh(cls, kind: str, candidate: str = "") -> "Form":
        """Return the form with the defaults of a kind, and with a candidate if one is given."""
        plan, keep, shadow = default_plan(kind), Keep(), Shadow()
        values = dict.fromkeys(_TEXTS, "") | {
            "candidate": candidate,
            "share": "50",
            "hold_days": f"{plan['hold_days']:g}",
            "shadow_share": f"{cast(float, plan['shadow']['share']):g}" if "shadow" in plan else "",
            "absolute": f"{shadow.absolute:g}",
            "relative": f"{shadow.relative:g}",
            "keep_count": str(keep.count),
            "keep_days": f"{keep.days:g}",
            "min_samples": str(plan["min_samples"]),
            "window_s": str(plan["window_s"]),
            "alpha": f"{plan['alpha']:g}",
        }
        remote = {
            "url": "",
            "protocol": "v2",
            "model": "",
            "version": "",
            "timeout_s": "10",
            "request": "",
            "response": "",
        }
        return cls(kind, values, {arm: dict(remote) for arm in _ARMS}, _usual_steps(), _usual_guardrails(plan))

    @classmethod
    def typed(cls, given: QueryDict) -> "Form":
        """Return the form as posted."""
        kind = given.get("kind", "")
        kind = kind if kind in RolloutKind.values else RolloutKind.CANARY
        values = {name: given.get(name, "").strip() for name in _TEXTS}
        remotes = {arm: {name: given.get(f"{arm}_{name}", "").strip() for name in _REMOTE} for arm in _ARMS}
        return cls(kind, values, remotes, _rows(given, "step", _STEP), _rows(given, "guardrail", _GUARDRAIL))

    # -- changes before it is sent -----------------------------------------------------------------------------------------
    def choose(self, kind: str) -> None:
        """Change the kind. Guardrails and a shadow share that are the old kind's defaults become the new kind's defaults."""
        if kind not in RolloutKind.values or kind == self.kind:
            return
        before, after = Form.fresh(self.kind), Form.fresh(kind)
        if self.guardrails == before.guardrails:
            self.guardrails = after.guardrails
        if self.values["shadow_share"] == before.values["shadow_share"]:
            self.values["shadow_share"] = after.values["shadow_share"]
        self.kind = kind

    def add(self, what: str) -> None:
        """Add an empty row."""
        if what == "step":
            self.steps.append(Row({"weight": "", "bake": "10 min"}))
        elif what == "guardrail":
            self.guardrails.append(Row(dict.fromkeys(_GUARDRAIL, "") | {"metric": "errors", "limit": "1"}))

    # -- the plan ----------------------------------------------------------------------------------------------------------
    def arms(self) -> tuple[int | JsonObject | None, JsonObject | None]:
        """Return the candidate (None if none is chosen), and stable if it is on another server, else None."""
        chosen: int | JsonObject | None = None
        with self._beside("candidate"):
            if self.values["candidate"] == REMOTE:
                chosen = self._remote("candidate")
            elif (typed := self.values["candidate"]).isdecimal() and typed.strip("0"):
                chosen = int(typed[:18])
            else:
                raise Invalid("choose the version that is to be tried")
        stable = None
        with self._beside("stable"):
            stable = self._remote("stable") if self.values["stable"] == REMOTE else None
        return chosen, stable

    def plan(self) -> dict[str, object]:
        """Return the typed fields of the plan; fields that cannot be read are in `errors`."""
        plan: dict[str, object] = {"promote": "hand" if self.values["by_hand"] else "auto", "steps": self._steps()}
        with self._beside("hold_days"):
            plan["hold_days"] = _between(_number(self.values["hold_days"]), 0, MAX_HOLD_DAYS)
        for name in ("min_samples", "window_s", "alpha"):
            with self._beside(name):
                plan[name] = _allowed("policy", name, _number(self.values[name]))
        plan["guardrails"] = list(self._guardrails())
        if self.kind == RolloutKind.SHADOW:
            plan["promote"] = "hand"
        with self._beside("sticky_name"):
            if self.kind != RolloutKind.SHADOW and (sticky := self._sticky()):
                plan["sticky"] = sticky
        if self._compares:
            plan["shadow"] = self._shadow()
        return plan

    def refuse(self, error: DashboardError) -> None:
        """Record the reason of a refusal at its field or row."""
        for problem in (error.problems if isinstance(error, Invalid) else []) or [
            Invalid.at("", error.message).problems[0]
        ]:
            rows = re.search(r"(steps|guardrails)\[(\d+)\]", f"{problem.field} {problem.message}")
            listed = getattr(self, rows[1]) if rows else []
            if rows and int(rows[2]) < len(listed):
                listed[int(rows[2])].wrong = sentence(problem.message)
            else:
                self.errors[problem.field] = sentence(problem.message)

    @property
    def wrong(self) -> bool:
        return bool(self.errors) or any(row.wrong for row in (*self.steps, *self.guardrails))

    @property
    def _compares(self) -> bool:
        return self.kind == RolloutKind.SHADOW or bool(self.values["shadow_share"])

    def _steps(self) -> list[JsonObject]:
        if self.kind == RolloutKind.CANARY:
            steps: list[JsonObject] = []
            for row in self.steps:
                with self._in(row):
                    steps.append({"weight": _percent(row.values["weight"]), "bake_s": _seconds(row.values["bake"])})
            if not self.steps:
                self.errors["steps"] = "Write at least one step."
            elif len(self.steps) > MAX_STEPS:
                self.errors["steps"] = f"Write at most {MAX_STEPS} steps."
            return steps
        step: JsonObject = {"weight": 0, "bake_s": 0}
        if self.kind == RolloutKind.AB:
            with self._beside("share"):
                step["weight"] = share = _percent(self.values["share"])
                if share in (0, 100):
                    raise Invalid("write a number between 0 and 100: an A/B test needs both arms")
        elif self.values["stop_after"]:
            with self._beside("stop_after"):
                step["bake_s"] = _seconds(self.values["stop_after"])
        return [step]

    def _guardrails(self) -> Iterator[JsonObject]:
        for row in self.guardrails:
            with self._in(row):
                if row.values["metric"] == "disagreement" and not self._compares:
                    raise Invalid("disagreement is counted where answers are compared: write a share for the shadow")
                yield _guardrail(row.values)

    def _sticky(self) -> JsonObject | None:
        by, name = self.values["sticky"], self.values["sticky_name"]
        if by in ("header", "parameter") and not name:
            raise Invalid(f"write the name of the {by} that requests of one client share")
        sticky: JsonObject = {by: True if by == "id" else name}
        if by and wrong_value("policy", "sticky", sticky):
            raise Invalid(f"'{name[:40]}' is not the name of a {by}: write one such as x-user")
        return sticky if by else None

    def _shadow(self) -> JsonObject:
        shadow: JsonObject = {}
        for name in ("shadow_share", "absolute", "relative"):
            with self._beside(name):
                field = name.removeprefix("shadow_")
                shadow[field] = _allowed("shadow", field, _number(self.values[name]))
        if self.values["private"]:
            return {**shadow, "keep": False}
        keep: JsonObject = {}
        for name in ("keep_count", "keep_days"):
            with self._beside(name):
                field = name.removeprefix("keep_")
                keep[field] = _allowed("keep", field, _number(self.values[name]))
        return {**shadow, "keep": keep}

    def _remote(self, arm: str) -> JsonObject:
        given = self.remotes[arm]
        if not given["url"]:
            raise Invalid("write the address of the other server, such as http://host:8000")
        remote: JsonObject = {name: given[name] for name in ("url", "protocol", "model", "version") if given[name]}
        if given["timeout_s"] and (timeout := _number(given["timeout_s"])) != Remote("").timeout_s:
            remote["timeout_s"] = timeout
        bodies = [name for name in ("request", "response") if given[name]]
        remote |= {name: _json(given[name], name) for name in bodies}
        takes = REMOTE_PROTOCOLS[given["protocol"]].bodies if given["protocol"] in REMOTE_PROTOCOLS else ""
        if bodies and not takes:
            titles = " and ".join(kind.title for kind in WITH_BODIES)
            raise Invalid(f"a request and a response are for {titles}: choose one of them, or leave both empty")
        if len(bodies) == 1 or (not bodies and takes == "required"):
            needs = {"required": "needs both", "optional": "both or neither"}
            said = ", ".join(f"{kind.title} {needs[kind.bodies]}" for kind in WITH_BODIES)
            raise Invalid(f"write the request and the response, too: {said}")
        for name, value in remote.items():
            _allowed("remote", name, value, _LABELS[name])
        return remote

    @contextmanager
    def _beside(self, name: str) -> Iterator[None]:
        try:
            yield
        except Invalid as error:
            self.errors[name] = sentence(error.message)

    @contextmanager
    def _in(self, row: Row) -> Iterator[None]:
        try:
            yield
        except Invalid as error:
            row.wrong = sentence(error.message)


def _rows(given: QueryDict, prefix: str, names: Iterable[str]) -> list[Row]:
    """Return the rows of a list, without those whose first field is empty."""
    columns = [given.getlist(f"{prefix}_{name}") for name in names]
    rows = [dict(zip(names, (text.strip() for text in row), strict=True)) for row in zip(*columns, strict=False)]
    return [Row(row) for row in rows if next(iter(row.values()))]


def _usual_steps() -> list[Row]:
    plan = default_plan(RolloutKind.CANARY)
    return [Row({"weight": f"{one['weight']:g}", "bake": duration(one["bake_s"])}) for one in plan["steps"]]


def _usual_guardrails(plan: Plan) -> list[Row]:
    return [Row(dict.fromkeys(_GUARDRAIL, "") | _typed_guardrail(one)) for one in plan["guardrails"]]


def _typed_guardrail(guardrail: Mapping[str, Json]) -> dict[str, str]:
    if guardrail["metric"] == "errors":
        return {"metric": "errors", "limit": three_digits(100 * cast(float, guardrail["margin"]))}
    quantile, ratio = cast(float, guardrail["quantile"]), cast(float, guardrail["ratio"])
    return {"metric": f"p{100 * quantile:g}", "limit": three_digits(ratio)}


def _guardrail(typed: Mapping[str, str]) -> JsonObject:
    guardrail = _guardrail_of(typed)
    for name, value in guardrail.items():
        _allowed("guardrail", name, value, _GUARDRAIL_LABELS.get(name, ""))
    return guardrail


def _guardrail_of(typed: Mapping[str, str]) -> JsonObject:
    metric, limit = typed["metric"], _number(typed["limit"])
    if metric == "errors":
        return {"metric": "errors", "margin": _percent(typed["limit"]) / 100}
    if metric == "disagreement":
        return {"metric": "disagreement", "limit": _percent(typed["limit"]) / 100}
    if metric == "metric":
        return {"metric": "prometheus", "name": _require_field(typed, "name", "the name of the metric"), "ratio": limit}
    if metric == "query":
        return {
            "metric": "prometheus",
            "url": _require_field(typed, "url", "the address of the Prometheus"),
            "stable": _require_field(typed, "stable", "the query of the stable version"),
            "candidate": _require_field(typed, "candidate", "the query of the candidate"),
            "ratio": limit,
        }
    if metric in dict(METRICS):
        return {"metric": "latency", "quantile": float(metric[1:]) / 100, "ratio": limit}
    raise Invalid(f"'{metric[:40]}' is nothing that a guardrail watches: choose one of the list")


def _require_field(typed: Mapping[str, str], name: str, what: str) -> str:
    if not typed[name]:
        raise Invalid(f"write {what}")
    return typed[name]


def _percent(text: str) -> float:
    """Return a typed share, from 0 to 100."""
    return _between(_number(text), 0, 100)


def _between(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise Invalid(f"write a number from {low:g} to {high:g}, not {value:g}")
    return value


def _number(text: str) -> float:
    """Return a typed number; a whole number as int, because some fields accept nothing else."""
    try:
        value = float(text.removesuffix("%").strip().replace(",", "."))
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise Invalid(f"'{text[:40]}' is not a number: write it as 5 or 0.5" if text else "write a number")
    return int(value) if value.is_integer() else value


def _allowed(part: str, name: str, value: Json, label: str = "") -> Json:
    """Return a valid value of the policy (repository.config.traffic.wrong_value), else raise Invalid.

    label: the label of its field, if several fields share one place for mistakes.
    """
    if wrong := wrong_value(part, name, value):
        typed_number = not label and isinstance(value, int | float)
        raise Invalid(f"write {wrong}, not {value:g}" if typed_number else f"{label}: write {wrong}")
    return value


def _seconds(text: str) -> float:
    """Return a typed duration in seconds, such as "10 min", "1 h 30 min" or "45 s"; a number alone is in minutes."""
    words = text.lower().strip()
    parts = _DURATION.findall(words)
    known = all(unit in _UNITS or (not unit and len(parts) == 1) for _, unit in parts)
    if not parts or not known or _DURATION.sub("", words).strip():
        wrong = f"'{text[:40]}' is not a time: write it as 10 min, 45 s or 2 h"
        raise Invalid(wrong if text else "write a time such as 10 min")
    seconds = sum(float(number.replace(",", ".")) * _UNITS[unit or "min"] for number, unit in parts)
    if seconds > MAX_BAKE_S:
        raise Invalid(f"write a time of at most {duration(MAX_BAKE_S)}")
    return seconds


def _json(text: str, name: str) -> Json:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid(f"the {name} is not JSON: check its quotes and brackets") from None
    return value
