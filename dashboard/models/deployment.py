"""Deployments: a release of a model that reaches the servers of an environment one group after another. What an environment
asks of a release before that, and who has approved it."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.environment import ServerEnvironment
from dashboard.models.model import Model
from dashboard.models.server import Server
from dashboard.shared.choices import DeploymentState, StepState

OPEN = (DeploymentState.RUNNING, DeploymentState.STOPPED)
UNREACHED = (StepState.WAITING, StepState.LEFT_OUT)  # what their servers serve is not the deployment's


class Deployment(models.Model):
    """A release on its way to all servers of an environment.

    earlier: the release that servers serve until they are reached, and again after *go back*; None if they did not serve the
    model. at_once: the most servers that change at a time. generation: that of the environment's wish when all servers serve
    the release. error: why it stopped, a sentence.
    """

    environment = models.ForeignKey(ServerEnvironment, on_delete=models.CASCADE, related_name="deployments")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="deployments")
    release = models.ForeignKey("Release", on_delete=models.CASCADE, related_name="+")
    earlier = models.ForeignKey("Release", null=True, on_delete=models.CASCADE, related_name="+")
    at_once = models.PositiveIntegerField(default=1)
    generation = models.PositiveBigIntegerField()
    state = models.CharField(max_length=8, choices=DeploymentState.choices, default=DeploymentState.RUNNING)
    error = models.CharField(max_length=1000, blank=True, default="")
    reason = models.CharField(max_length=300, blank=True, default="")
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    started_by_name = models.CharField(max_length=150, blank=True, default="")
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["environment", "model"], condition=models.Q(state__in=OPEN), name="deployment_open_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.release} to {self.environment}"

    @property
    def open(self) -> bool:
        return self.state in OPEN


class DeploymentServer(models.Model):
    """A server of a deployment. generation: that of its wish once it is reached. began_at: when it was reached."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="steps")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    position = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=StepState.choices, default=StepState.WAITING)
    generation = models.PositiveBigIntegerField()
    error = models.CharField(max_length=1000, blank=True, default="")
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["position", "pk"]
        constraints = [models.UniqueConstraint(fields=["deployment", "server"], name="deployment_server_once")]

    def __str__(self) -> str:
        return f"{self.deployment} on {self.server}: {self.state}"


class Freeze(TypedDict):
    """Times of each week in which nothing is deployed. days: 0 for Monday to 6. start, end: "HH:MM"; end may be "24:00"."""

    days: list[int]
    start: str
    end: str


class DeploymentPolicy(models.Model):
    """What an environment asks of a release before it is deployed there; an environment without a row asks nothing.

    source: the environment in which the release must serve, None for none. golden: whether golden requests must have passed,
    there if `source` is set. budget: whether its versions must keep the budget of their model. approval: whether a second
    person must approve it. freezes: in time_zone, an IANA name.
    """

    environment = models.OneToOneField(ServerEnvironment, on_delete=models.CASCADE, related_name="policy")
    source = models.ForeignKey(ServerEnvironment, null=True, on_delete=models.SET_NULL, related_name="leads_to")
    golden = models.BooleanField(default=False)
    budget = models.BooleanField(default=False)
    approval = models.BooleanField(default=False)
    freezes: "models.JSONField[list[Freeze], list[Freeze]]" = models.JSONField(default=list)
    time_zone = models.CharField(max_length=64, default="UTC")

    def __str__(self) -> str:
        return f"what {self.environment} asks"


class DeploymentApproval(models.Model):
    """A person approves that exactly this release is deployed in an environment. A newer release needs another approval."""

    environment = models.ForeignKey(ServerEnvironment, on_delete=models.CASCADE, related_name="approvals")
    release = models.ForeignKey("Release", on_delete=models.CASCADE, related_name="approvals")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    comment = models.CharField(max_length=300, blank=True, default="")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["environment", "release", "user"], name="deployment_approval_once")
        ]

    def __str__(self) -> str:
        return f"{self.user} approves {self.release} for {self.environment}"
