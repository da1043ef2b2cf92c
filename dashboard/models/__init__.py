"""The tables of the database, with a file for each concept. All tables are in one room because they refer to each other in
every direction. The room imports only `shared`. Services in other rooms enforce the rules and write the rows. Selectors read
the rows."""

from dashboard.models.alert import Alert, AlertChannel, AlertDelivery, AlertEvent, AlertMute, AlertOff, AlertRule
from dashboard.models.audit import AuditEntry
from dashboard.models.batch import BatchFile, BatchJob, BatchPart
from dashboard.models.capture import Capture
from dashboard.models.cluster import ClusterLook, ReplicaCount, ReplicaEvent
from dashboard.models.deployment import Deployment, DeploymentApproval, DeploymentPolicy, DeploymentServer
from dashboard.models.drift import DriftMonitor, DriftPicture, DriftWindow
from dashboard.models.environment import ServerEnvironment, WantedRelease
from dashboard.models.example import Example
from dashboard.models.installation import Installation
from dashboard.models.job import Job
from dashboard.models.measurement import Measurement
from dashboard.models.metrics import MetricSample
from dashboard.models.model import Model
from dashboard.models.noted import FailureCount, NotedRequest
from dashboard.models.objective import Objective, ObjectiveCount
from dashboard.models.presence import Heartbeat, TableMark
from dashboard.models.release import Release, ReleaseCheck, ReleaseSpan
from dashboard.models.replay import Replay, ReplayDifference
from dashboard.models.rollout import Rollout, RolloutFigures, RolloutMismatch, RolloutSample
from dashboard.models.schema_change import SchemaChange
from dashboard.models.server import ModelState, ModelSync, Server, ServerEvent, ServerState
from dashboard.models.sign_in import SignInCount
from dashboard.models.token import ApiToken
from dashboard.models.truth import TruthLabel, TruthMetric
from dashboard.models.tuning import Tuning
from dashboard.models.upload import Upload, UploadFile
from dashboard.models.usage import Quota, UsageDay, UsageFile
from dashboard.models.version import Version
from dashboard.models.watch_lease import WatchLease

__all__ = [
    "Alert",
    "AlertChannel",
    "AlertDelivery",
    "AlertEvent",
    "AlertMute",
    "AlertOff",
    "AlertRule",
    "ApiToken",
    "AuditEntry",
    "BatchFile",
    "BatchJob",
    "BatchPart",
    "Capture",
    "ClusterLook",
    "Deployment",
    "DeploymentApproval",
    "DeploymentPolicy",
    "DeploymentServer",
    "DriftMonitor",
    "DriftPicture",
    "DriftWindow",
    "Example",
    "FailureCount",
    "Heartbeat",
    "Installation",
    "Job",
    "Measurement",
    "MetricSample",
    "Model",
    "ModelState",
    "ModelSync",
    "NotedRequest",
    "Objective",
    "ObjectiveCount",
    "Quota",
    "Release",
    "ReleaseCheck",
    "ReleaseSpan",
    "Replay",
    "ReplayDifference",
    "ReplicaCount",
    "ReplicaEvent",
    "Rollout",
    "RolloutFigures",
    "RolloutMismatch",
    "RolloutSample",
    "SchemaChange",
    "Server",
    "ServerEnvironment",
    "ServerEvent",
    "ServerState",
    "SignInCount",
    "TableMark",
    "TruthLabel",
    "TruthMetric",
    "Tuning",
    "Upload",
    "UploadFile",
    "UsageDay",
    "UsageFile",
    "Version",
    "WantedRelease",
    "WatchLease",
]
