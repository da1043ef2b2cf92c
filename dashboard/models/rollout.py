"""A rollout: the plan by which requests move from one version of a model to another, and its state.

The releases hold the serving versions and their weights. Reports of servers are stored with the rollout: the last report of
each server, a coarse history, and the mismatches with the largest differences.
"""

from typing import NotRequired, TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.text import capfirst

from dashboard.models.model import Model
from dashboard.models.server import Server
from dashboard.shared.choices import RolloutKind, RolloutState
from repository.core.json_types import JsonObject


class PlanStep(TypedDict):
    """The candidate's share of the requests, and the step's bake time: the seconds that the step must serve before the next one
    may begin."""

    weight: float  # per cent
    bake_s: float


class Plan(TypedDict):
    """The whole plan of a rollout, which rollouts.plan makes from a person's input. Fields of the traffic policy have the names
    of `slipway.traffic` (docs/configuration.md)."""

    steps: list[PlanStep]
    promote: str  # "auto", or "hand": the last step waits for a person
    hold_days: float  # days for which the old version stays loaded after the promotion
    guardrails: list[JsonObject]
    min_samples: int
    window_s: int
    alpha: float
    sticky: NotRequired[JsonObject]
    shadow: NotRequired[JsonObject]


class Latency(TypedDict):
    """A histogram of durations. counts: by the bucket of repository.core.histogram, as text because JSON's keys are text."""

    total: int
    sum_ns: int
    counts: dict[str, int]


class WindowReport(TypedDict):
    """The figures of an arm in the window that guardrails evaluate. seconds: the window's length, approximate until it is
    full."""

    seconds: float
    requests: int
    errors: int
    latency: Latency


class ArmReport(TypedDict):
    """The figures of an arm since the rollout began, as a server reports them."""

    version: str
    remote: str  # the address of another server, "" for none
    requests: int
    errors: int
    latency: Latency
    window: NotRequired[WindowReport]


class Trouble(TypedDict):
    """The candidate's last error. at: in Unix seconds."""

    reason: str
    at: float


class ShadowReport(TypedDict):
    """The comparison of both arms' answers since the rollout began. dropped: mirrored requests that were not sent, by reason.
    trouble: the last error of a request that was sent."""

    compared: int
    disagreed: int
    mismatched: int
    top1_compared: int
    top1_agreed: int
    max_absolute: float
    mean_absolute: float
    max_relative: float
    failed: int
    dropped: dict[str, int]
    trouble: NotRequired[Trouble | None]
    stable_latency: Latency
    candidate_latency: Latency


class GuardrailReport(TypedDict):
    """The state of a guardrail: waiting (too few samples), holds, breached. limit: the bound on the candidate's value."""

    metric: str
    stable: float | None
    candidate: float | None
    limit: float | None
    samples: list[int]  # how many samples stable and the candidate have
    p: float | None
    state: str
    detail: str


class Breach(TypedDict):
    """The reason why a server took the candidate out. guardrail: its index in the plan. at: in Unix seconds."""

    guardrail: int
    reason: str
    at: float


class TrafficReport(TypedDict):
    """A server's report of a rollout, which its live feed sends once a second after changes.

    rollout: the rollout's name, or None if the model has no rollout any more; then the later fields are missing.
    guardrails: their states; [] before their first evaluation.
    """

    model: str
    namespace: NotRequired[str]
    rollout: str | None
    release: int | None
    weight: float  # the weight in force: 0 after a breach
    asked_weight: float
    breach: Breach | None
    arms: dict[str, ArmReport]  # stable, candidate
    shadow: ShadowReport | None
    guardrails: list[GuardrailReport]


class Rollout(models.Model):
    """name: the rollout's name in the traffic policy and in servers' reports. stable, candidate: the number of a version, or a
    model on another server as in the policy. step: the index in the plan. step_release: the release that began the step.
    baked_s: the seconds that the step had served at its last pause. resumed_at: the end of that pause. base: the release that
    was wanted before the rollout; a rollback returns to it. reason: a sentence that says why the rollout ended. trouble: a
    clause that says why the rollout cannot continue; "" if it can. hold_until: the time until which the old version stays
    loaded. forgotten_at: the time when somebody deleted the mismatches. Older mismatches are not stored again.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="rollouts")
    name = models.CharField(max_length=64, unique=True)
    kind = models.CharField(max_length=8, choices=RolloutKind.choices)
    state = models.CharField(max_length=12, choices=RolloutState.choices, default=RolloutState.RUNNING)
    stable: "models.JSONField[int | JsonObject, int | JsonObject]" = models.JSONField()
    candidate: "models.JSONField[int | JsonObject, int | JsonObject]" = models.JSONField()
    plan: "models.JSONField[Plan, Plan]" = models.JSONField()
    step = models.PositiveSmallIntegerField(default=0)
    step_since = models.DateTimeField(default=timezone.now)
    step_release = models.ForeignKey("dashboard.Release", null=True, on_delete=models.SET_NULL, related_name="+")
    baked_s = models.FloatField(default=0)
    resumed_at = models.DateTimeField(null=True)
    base = models.ForeignKey("dashboard.Release", null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.TextField(blank=True, default="")
    trouble = models.TextField(blank=True, default="")
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    hold_until = models.DateTimeField(null=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    ended_by_name = models.CharField(max_length=150, blank=True, default="")
    forgotten_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-started_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model"],
                condition=models.Q(state__in=["running", "paused", "holding"]),
                name="rollout_open_once",
            )
        ]
        indexes = [
            models.Index(fields=["model", "-started_at"], name="rollout_of_model"),
            models.Index(fields=["state"], name="rollout_of_state"),
        ]

    def __str__(self) -> str:
        return f"rollout {self.name} of {self.model}"

    @property
    def stable_version(self) -> int | None:
        """The version that answered when the rollout began, or None if a model on another server answered."""
        return self.stable if isinstance(self.stable, int) else None

    @property
    def candidate_version(self) -> int | None:
        return self.candidate if isinstance(self.candidate, int) else None

    @property
    def stable_words(self) -> str:
        return arm_in_words(self.stable)

    @property
    def candidate_words(self) -> str:
        return arm_in_words(self.candidate)

    @property
    def weight(self) -> float:
        """The candidate's share of the requests in the present step, in per cent."""
        return self.plan["steps"][self.step]["weight"]

    @property
    def bake_s(self) -> float:
        return self.plan["steps"][self.step]["bake_s"]

    @property
    def next_weight(self) -> float | None:
        """The weight of the next step, or None in the last one."""
        steps = self.plan["steps"]
        return steps[self.step + 1]["weight"] if self.step + 1 < len(steps) else None

    @property
    def under_way(self) -> bool:
        """True if requests are split between the arms, or mirrored."""
        return self.state in (RolloutState.RUNNING, RolloutState.PAUSED)

    @property
    def in_words(self) -> str:
        """A sentence that says what the rollout does now, or why it ended."""
        if self.state == RolloutState.ROLLED_BACK:
            taken_out = f"{capfirst(self.candidate_words)} was taken out: {self.reason}"
            return f"{capfirst(self.stable_words)} answers everything. {taken_out}"
        if self.reason:
            return self.reason
        if self.state == RolloutState.HOLDING:
            return f"{capfirst(self.candidate_words)} answers everything; {self.stable_words} is held."
        shadow = self.plan.get("shadow")
        if self.kind == RolloutKind.SHADOW and shadow is not None:
            return f"{shadow['share']:g} % of requests are also asked of {self.candidate_words}."
        steps = len(self.plan["steps"])
        step = f"; step {self.step + 1} of {steps}" if steps > 1 else ""
        return f"{self.weight:g} % of requests go to {self.candidate_words}{step}."

    @property
    def replaced_another(self) -> bool:
        """True if the candidate is a version that should replace a model on another server."""
        return self.stable_version is None and self.candidate_version is not None and self.kind != RolloutKind.SHADOW

    @property
    def shadows(self) -> bool:
        """True if the candidate only gets mirrored requests and answers no client."""
        return self.kind == RolloutKind.SHADOW and self.under_way

    @property
    def shadowed_version(self) -> int | None:
        """The shadow candidate that answers no client, or None. A candidate that served before still answers clients."""
        if not self.shadows or (self.base is not None and self.candidate_version in self.base.versions):
            return None
        return self.candidate_version

    @property
    def undo(self) -> str:
        """The label of the button that undoes the rollout."""
        if self.shadows:
            return "Stop the shadow"
        return f"Roll back to {self.stable_words}" if self.stable_version else "Roll back"

    @property
    def undone_in_words(self) -> str:
        """A sentence about the effect of undoing the rollout."""
        stays = "" if self.under_way else ", which is still loaded,"
        again = "continues to answer everything" if self.shadows else "answers everything again immediately"
        return f"{capfirst(self.stable_words)}{stays} {again}."

    @property
    def waits_for_person(self) -> str:
        """A sentence that says which button a person must press to continue; "" if it continues automatically."""
        if self.state != RolloutState.RUNNING or self.kind != RolloutKind.CANARY or self.next_weight is not None:
            return ""
        promote = f"Promote {self.candidate_words}, or " if self.candidate_version else ""
        press = f"press {promote}{self.undo}"
        if self.plan["promote"] != "auto" or self.candidate_version is None:
            return f"The last step waits for somebody: {press}."
        if self.weight == 100 and any(_stable_unknown(row.report, self) for row in self.figures.all()):
            return f"At 100 % {self.stable_words} gets no more requests, so its figures stay unknown: {press}."
        return ""

    @property
    def in_short(self) -> str:
        """A few words that say what the rollout does now."""
        if self.state == RolloutState.HOLDING:
            return f"{self.stable_words} held"
        shadow = self.plan.get("shadow")
        if self.kind == RolloutKind.SHADOW and shadow is not None:
            return f"{self.candidate_words} in the shadow"
        return f"{self.weight:g} % to {self.candidate_words}"


def arm_in_words(arm: int | JsonObject) -> str:
    """Return an arm in words: "version 3", or a model with the address of its server."""
    if isinstance(arm, int):
        return f"version {arm}"
    model = f"model '{arm['model']}'" if arm.get("model") else "the model"
    return f"{model} at {arm.get('url', '')}"


def _stable_unknown(report: TrafficReport, rollout: Rollout) -> bool:
    """Return whether a guardrail of the present step waits for samples that the stable version will never get."""
    if report["asked_weight"] != rollout.weight:
        return False
    least = rollout.plan["min_samples"]
    waiting = [one for one in report["guardrails"] if one["state"] == "waiting" and one["samples"][0] < least]
    return any(
        # Both sample counts of a disagreement are the requests that both arms answered.
        one["metric"] == "disagreement" or (one["metric"] in ("errors", "latency") and least <= one["samples"][1])
        for one in waiting
    )


class RolloutFigures(models.Model):
    """A server's last report of a rollout.

    report: the report, with histograms in our buckets. earlier: the counts of the server's earlier processes, in the
    shape of RolloutSample.data. every_s: the seconds between two rows of the history.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="figures")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    instance = models.CharField(max_length=64, blank=True, default="")
    report: "models.JSONField[TrafficReport, TrafficReport]" = models.JSONField()
    earlier: "models.JSONField[JsonObject, JsonObject]" = models.JSONField(default=dict)
    every_s = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "server"], name="rollout_figures_once")]

    def __str__(self) -> str:
        return f"{self.rollout} on {self.server}"


class RolloutSample(models.Model):
    """The totals of both arms at a moment; the difference of two rows is the work between them. at: in Unix seconds."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="samples")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+", db_index=False)
    at = models.PositiveBigIntegerField()
    data: "models.JSONField[JsonObject, JsonObject]" = models.JSONField()

    class Meta:
        ordering = ["at"]
        constraints = [models.UniqueConstraint(fields=["rollout", "server", "at"], name="rollout_sample_once")]

    def __str__(self) -> str:
        return f"{self.rollout} at {self.at}"


class RolloutMismatch(models.Model):
    """One request that both arms answered differently; kept within the bounds that the plan sets.

    number: the number that the server gave the request. score: the size of the difference. data: inputs, stable, candidate:
    tensors in the JSON of repository.core.tensors.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="mismatches")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+", db_index=False)
    number = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    score = models.FloatField()
    detail = models.TextField(blank=True, default="")
    size_bytes = models.PositiveIntegerField(default=0)
    data: "models.JSONField[JsonObject, JsonObject]" = models.JSONField()

    class Meta:
        ordering = ["-score", "-at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["rollout", "server", "at", "number"], name="rollout_mismatch_once")
        ]

    def __str__(self) -> str:
        return f"{self.rollout}, request {self.number}"
