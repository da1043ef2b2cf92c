"""The choices of the database's fields, with their labels for people."""

from django.db.models import TextChoices

from repository.core.condition import Condition


class DesiredState(TextChoices):
    LOADED = "loaded", "Loaded"
    UNLOADED = "unloaded", "Unloaded"


class VersionState(TextChoices):
    """MOVING: a job moves its files to the archive or back."""

    PUBLISHED = "published", "Published"
    MOVING = "moving", "Moving"
    ARCHIVED = "archived", "Archived"


class ReleaseKind(TextChoices):
    """The act that made a release."""

    PUBLISH = "publish", "Published"
    CONFIGURE = "configure", "Configured"
    PROMOTE = "promote", "Made live"
    GO_BACK = "go_back", "Gone back"
    ALIASES = "aliases", "Aliases moved"
    ADOPT = "adopt", "Adopted from the disk"
    ROLLOUT = "rollout", "Step of a rollout"


class ReleaseState(TextChoices):
    """The state of a release, as drawn in `releases.life`."""

    IDLE = "idle", "Not loaded"
    WANTED = "wanted", "Wanted"
    HELD = "held", "Needs a deployment"
    CHECKING = "checking", "Being checked"
    SERVING = "serving", "Live"
    FAILED = "failed", "Failed"
    SERVED = "served", "Was live"
    SKIPPED = "skipped", "Replaced before it was live"


class RolloutKind(TextChoices):
    """SHADOW: requests are mirrored to the candidate, and the answers are compared. CANARY: the candidate gets a growing share
    of the requests. AB: the candidate gets a fixed share until somebody ends the test."""

    SHADOW = "shadow", "Shadow"
    CANARY = "canary", "Canary"
    AB = "ab", "A/B test"


class RolloutState(TextChoices):
    """The state of a rollout, as drawn in `releases.rollout_states`."""

    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    HOLDING = "holding", "Promoted, old version held"
    DONE = "done", "Done"
    ABORTED = "aborted", "Aborted"
    ROLLED_BACK = "rolled_back", "Rolled back"


class DeploymentState(TextChoices):
    """STOPPED: a server failed, or a person stopped it; it waits for a person. RETURNED: a person went back."""

    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    DONE = "done", "Done"
    RETURNED = "returned", "Gone back"


class StepState(TextChoices):
    """How far a deployment is with one server. LEFT_OUT: a person goes on without it."""

    WAITING = "waiting", "Waiting"
    CHANGING = "changing", "Changing"
    DONE = "done", "Changed"
    FAILED = "failed", "Failed"
    LEFT_OUT = "left_out", "Left out"


class CheckState(TextChoices):
    """The state of a server's load of a release."""

    RUNNING = "running", "Running"
    PASSED = "passed", "Passed"
    FAILED = "failed", "Failed"


class ServerStatus(TextChoices):
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running, loading models"
    READY = "ready", "Ready"
    DOWN = "down", "Down"
    STOPPED = "stopped", "Stopped"


class ModelStatus(TextChoices):
    """The state of one version on a server, from Triton's model repository extension."""

    READY = "READY", "Ready"
    LOADING = "LOADING", "Loading"
    UNLOADING = "UNLOADING", "Unloading"
    UNAVAILABLE = "UNAVAILABLE", "Unavailable"


def version_word(state: str, condition: str, failed: bool) -> str:
    """Return the word that pages show for a version's state: a ModelStatus in lower case, "asleep", "unloaded" or "failed".

    state: a ModelStatus. condition: a repository.core.condition.Condition. failed: whether the last load failed. An unavailable
    version counts as failed, unless it is asleep or unloaded. A ready version that is silent counts as failed, too.
    """
    if state == ModelStatus.READY and condition == Condition.SILENT:
        return "failed"
    if state != ModelStatus.UNAVAILABLE:
        return state.lower()
    sleeps = condition == Condition.ASLEEP and not failed
    return condition if condition == Condition.UNLOADED or sleeps else "failed"


class UploadState(TextChoices):
    RECEIVING = "receiving", "Receiving"
    RECEIVED = "received", "Received"
    INSPECTING = "inspecting", "Inspecting"
    INSPECTED = "inspected", "Ready to publish"
    CONVERTING = "converting", "Converting"
    PUBLISHING = "publishing", "Publishing"
    PUBLISHED = "published", "Published"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"
    CANCELLED = "cancelled", "Cancelled"


class JobState(TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class MeasurementState(TextChoices):
    """STOPPED: the measurement took too much from clients."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class Severity(TextChoices):
    """CRITICAL: clients are, or soon will be, refused. Quiet hours do not hold it back."""

    CRITICAL = "critical", "Critical"
    WARNING = "warning", "Warning"


class AlertState(TextChoices):
    """The state of an alert, as drawn in `alerts.life`."""

    PENDING = "pending", "Pending"
    FIRING = "firing", "Firing"
    RESOLVED = "resolved", "Resolved"


class ChannelKind(TextChoices):
    EMAIL = "email", "E-mail"
    WEBHOOK = "webhook", "Webhook"
    SLACK = "slack", "Slack"
    PAGERDUTY = "pagerduty", "PagerDuty"


class DeliveryState(TextChoices):
    """The state of a message about an alert, as drawn in `alerts.outbox`."""

    WAITING = "waiting", "Waiting"
    SENDING = "sending", "Sending"
    SENT = "sent", "Sent"
    DEAD = "dead", "Given up"
    DROPPED = "dropped", "Not needed any more"


class EventKind(TextChoices):
    """Events of servers; charts show them as markers."""

    STARTED = "started", "Started"
    READY = "ready", "Ready"
    CRASHED = "crashed", "Crashed"
    RESTARTED = "restarted", "Restarted"
    STOPPED = "stopped", "Stopped"
    UNREACHABLE = "unreachable", "Unreachable"
    MODEL_LOADED = "model_loaded", "Model loaded"
    MODEL_UNLOADED = "model_unloaded", "Model unloaded"
    MODEL_FAILED = "model_failed", "Model failed"
    BREACHED = "breached", "Guardrail breached"
    REPAIRED = "repaired", "Repaired"


class ExampleSource(TextChoices):
    """The origin of an example's request."""

    TYPED = "typed", "Typed in"
    PLAYGROUND = "playground", "Playground"
    TRAFFIC = "traffic", "Live traffic"


class TokenRight(TextChoices):
    READ = "read", "Read everything"
    INFER = "infer", "Send inference requests"
    WRITE = "write", "Load, unload, configure, upload data formats"
    UPLOAD_CODE = "upload_code", "Upload formats that can run code"
    ADMIN = "admin", "Administer servers and accounts"


class TruthKind(TextChoices):
    """The metric that compares labels with answers. OWN: the mean of an expression."""

    ACCURACY = "accuracy", "Accuracy"
    MAE = "mae", "Mean absolute error"
    RMSE = "rmse", "Root mean squared error"
    OWN = "own", "Own metric"
