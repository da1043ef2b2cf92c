"""What a server tells of a rollout, made by hand: for tests that need a certain word at a certain moment."""

from typing import Any

from dashboard.models import Rollout
from dashboard.models.rollout import ArmReport, GuardrailReport, Latency, ShadowReport, TrafficReport
from dashboard.servers.messages import Mismatch
from repository.core.histogram import bucket_of


def latency(requests: int, each_us: int) -> Latency:
    counts = {str(bucket_of(each_us)): requests} if requests else {}
    return {"total": requests, "sum_ns": requests * each_us * 1000, "counts": counts}


def arm(version: str, requests: int, errors: int = 0, each_us: int = 1000) -> ArmReport:
    return {
        "version": version,
        "remote": "",
        "requests": requests,
        "errors": errors,
        "latency": latency(requests - errors, each_us),
    }


def guardrail(state: str = "holds", metric: str = "errors", samples: int = 300) -> GuardrailReport:
    return {
        "metric": metric,
        "stable": 0.001,
        "candidate": 0.002,
        "limit": 0.011,
        "samples": [samples, samples],
        "p": 0.4,
        "state": state,
        "detail": f"{samples} of 200 requests to the candidate in 5 min" if state == "waiting" else "",
    }


def shadow_report(compared: int = 8, failed: int = 0) -> ShadowReport:
    return {
        "compared": compared,
        "disagreed": 1,
        "mismatched": 0,
        "top1_compared": compared,
        "top1_agreed": compared - 1,
        "max_absolute": 7.0,
        "mean_absolute": 0.1,
        "max_relative": 0.7,
        "failed": failed,
        "dropped": {"queue": 3},
        "stable_latency": latency(compared, 1000),
        "candidate_latency": latency(compared, 1000),
    }


def rollout_report(
    rollout: Rollout, *, stable: int = 0, candidate: int = 0, errors: int = 0, **more: Any
) -> TrafficReport:
    """The word of a server that serves the present step; errors: of the candidate."""
    word: TrafficReport = {
        "model": rollout.model.name,
        "rollout": rollout.name,
        "release": None,
        "weight": rollout.weight,
        "asked_weight": rollout.weight,
        "breach": None,
        "arms": {"stable": arm("1", stable), "candidate": arm("2", candidate, errors, 2000)},
        "shadow": None,
        "guardrails": [guardrail(metric=str(one["metric"])) for one in rollout.plan["guardrails"]],
    }
    word.update(more)  # type: ignore[typeddict-item]  # of a test's own choosing
    return word


def mismatch(number: int, *, score: float, size: int = 1, at: float = 1.8e9) -> Mismatch:
    tensor: Any = {"name": "x", "datatype": "FP32", "shape": [size], "data": [number] * size}
    return {
        "id": number,
        "at": at + number,
        "score": score,
        "inputs": [tensor],
        "stable": [tensor],
        "candidate": [tensor],
        "detail": f"y differs by {score}",
    }
