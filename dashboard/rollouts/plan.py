"""Makes the plan of a rollout from a person's fields, and the traffic policy of each step from the plan."""

import json
from collections.abc import Mapping
from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Rollout
from dashboard.models.rollout import Plan, PlanStep
from dashboard.shared.choices import RolloutKind
from dashboard.shared.exceptions import Invalid
from repository.config.traffic import TrafficPolicy, policy_of, traffic_problem
from repository.core.json_types import Json, JsonObject

MAX_STEPS = 50
MAX_BAKE_S = 90 * 24 * 3600
MAX_HOLD_DAYS = 365
PROMOTE = ("auto", "hand")

_BAKE_S = 600.0
_DIGITS = 4  # the most decimals of a weight; sentences show all, so that 99.9999 is not shown as 100
_GUARDRAILS: list[JsonObject] = [
    {"metric": "errors", "margin": 0.01},
    {"metric": "latency", "quantile": 0.5, "ratio": 1.5},
    {"metric": "latency", "quantile": 0.99, "ratio": 1.5},
]
_STEPS: dict[str, list[PlanStep]] = {
    RolloutKind.SHADOW: [{"weight": 0, "bake_s": 0}],
    RolloutKind.CANARY: [{"weight": weight, "bake_s": _BAKE_S} for weight in (5, 25, 50, 100)],
    RolloutKind.AB: [{"weight": 50, "bake_s": 0}],
}
_POLICY = ("sticky", "shadow", "guardrails", "min_samples", "window_s", "alpha")
_FIELDS = ("steps", "promote", "hold_days", *_POLICY)


def default_plan(kind: str) -> Plan:
    """Return the default plan of a kind."""
    plan: Plan = {
        "steps": [PlanStep(weight=one["weight"], bake_s=one["bake_s"]) for one in _STEPS[kind]],
        "promote": "auto" if kind == RolloutKind.CANARY else "hand",
        "hold_days": 7,
        "guardrails": [] if kind == RolloutKind.SHADOW else [dict(one) for one in _GUARDRAILS],
        "min_samples": 200,
        "window_s": 300,
        "alpha": 0.001,
    }
    if kind == RolloutKind.SHADOW:
        plan["shadow"] = {"share": 10}
    return plan


def plan_of(kind: str, given: Mapping[str, object]) -> Plan:
    """Return the default plan with a person's fields in it. Raises Invalid, with the expected value, if a field is wrong."""
    if kind not in RolloutKind.values:
        raise Invalid.at("kind", f"expected 'kind' to be one of {', '.join(RolloutKind.values)}, not '{kind[:80]}'")
    for name in given:
        if name not in _FIELDS:
            raise Invalid.at(name[:80], f"expected {', '.join(_FIELDS)} in a plan, not '{name[:80]}'")
    plan = cast(Plan, {**default_plan(kind), **{name: value for name, value in given.items() if value is not None}})
    plan["steps"] = _steps(kind, plan["steps"])
    if plan["promote"] not in PROMOTE:
        raise _wrong("promote", "'auto', or 'hand' where the last step waits for a person", plan["promote"])
    if not _between(plan["hold_days"], 0, MAX_HOLD_DAYS):
        raise _wrong("hold_days", f"a number of days from 0 (unload immediately) to {MAX_HOLD_DAYS}", plan["hold_days"])
    if kind == RolloutKind.SHADOW and not isinstance(plan.get("shadow"), dict):
        raise Invalid.at("shadow", "a shadow mirrors requests: give 'shadow' such as {\"share\": 10}")
    return plan


def policy_checked(policy: JsonObject) -> TrafficPolicy:
    """Return the parsed policy. Raises Invalid if a server would refuse the policy."""
    if wrong := traffic_problem(policy, ModelConfig()):
        field = next((name for name in ("stable", "candidate", *_POLICY) if f"'{name}" in wrong), "")
        raise Invalid.at(field, wrong)
    return policy_of(policy)


def policy_at(rollout: Rollout, weight: float) -> JsonObject:
    """Return the traffic policy of a rollout at a weight."""
    stable = rollout.stable if isinstance(rollout.stable, dict) else None
    return policy_of_plan(rollout.name, rollout.plan, rollout.candidate, stable, weight)


def policy_of_plan(
    name: str, plan: Plan, candidate: int | JsonObject, stable: JsonObject | None, weight: float
) -> JsonObject:
    """Return the traffic policy of a plan. stable: a model on another server, or None if stable is the version that answers."""
    arms: JsonObject = {"rollout": name, "candidate": candidate, "weight": weight}
    if stable is not None:
        arms["stable"] = stable
    given = cast(Mapping[str, Json], plan)
    return {**arms, **{name: given[name] for name in _POLICY if name in given}}


def stopped_policy(rollout: Rollout) -> JsonObject | None:
    """Return the policy with which stable answers everything, or None if stable is a version, which needs no policy."""
    if not isinstance(rollout.stable, dict):
        return None
    return {"rollout": rollout.name, "candidate": rollout.candidate, "stable": rollout.stable, "weight": 0}


def weight_in_words(weight: float) -> str:
    return f"{weight:g} % of requests"


def _steps(kind: str, given: object) -> list[PlanStep]:
    example = '[{"weight": 5, "bake_s": 600}, {"weight": 100, "bake_s": 600}]'
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_STEPS:
        raise _wrong("steps", f"a list of 1 to {MAX_STEPS} steps such as {example}", given)
    usual = _BAKE_S if kind == RolloutKind.CANARY else 0
    steps = [_step(index, one, usual) for index, one in enumerate(given)]
    weights = [one["weight"] for one in steps]
    if kind == RolloutKind.CANARY:
        if weights != sorted(set(weights)) or weights[0] == 0:
            raise Invalid.at(
                "steps", "the shares of a canary grow from step to step, and begin above 0: put them in order"
            )
    elif len(steps) > 1:
        raise Invalid.at("steps", f"expected one step, not {len(steps)}: steps that follow each other are a canary's")
    elif kind == RolloutKind.SHADOW and weights[0] != 0:
        raise Invalid.at("steps", "a shadow answers nobody: expected its 'weight' to be 0, or choose a canary")
    elif kind == RolloutKind.AB and not 0 < weights[0] < 100:
        raise Invalid.at(
            "steps", f"an A/B test needs both arms: expected a 'weight' between 0 and 100, not {weights[0]:g}"
        )
    elif kind == RolloutKind.AB and steps[0]["bake_s"]:
        raise Invalid.at("steps", "an A/B test stays until somebody ends it: leave 'bake_s' out")
    return steps


def _step(index: int, given: object, usual_bake_s: float) -> PlanStep:
    name = f"steps[{index}]"
    if not isinstance(given, dict) or "weight" not in given or set(given) - {"weight", "bake_s"}:
        raise _wrong(name, 'an object such as {"weight": 5, "bake_s": 600}', given)
    weight, bake = given["weight"], given.get("bake_s", usual_bake_s)
    if not _between(weight, 0, 100) or weight != round(weight, _DIGITS):
        rule = f"per cent of the requests, from 0 to 100 with at most {_DIGITS} digits behind the point"
        raise _wrong(f"{name}.weight", rule, weight)
    if not _between(bake, 0, MAX_BAKE_S):
        raise _wrong(f"{name}.bake_s", f"a number of seconds from 0 to {MAX_BAKE_S}", bake)
    return {"weight": weight, "bake_s": bake}


def _between(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _wrong(field: str, expected: str, given: object) -> Invalid:
    return Invalid.at(field, f"expected '{field}' to be {expected}, not {json.dumps(given, default=str)[:80]}")
