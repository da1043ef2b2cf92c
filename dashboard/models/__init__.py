"""The tables of the database, with a file for each concept. All tables are in one room because they refer to each other in
every direction. The room imports only `shared`. Services in other rooms enforce the rules and write the rows. Selectors read
the rows."""

from dashboard.models.audit import AuditEntry
from dashboard.models.batch import BatchFile, BatchJob, BatchPart
from dashboard.models.capture import Capture
from dashboard.models.example import Example
from dashboard.models.job import Job
from dashboard.models.measurement import Measurement
from dashboard.models.metrics import MetricSample
from dashboard.models.model import Model
from dashboard.models.release import Release, ReleaseCheck, ReleaseSpan
from dashboard.models.rollout import Rollout, RolloutFigures, RolloutMismatch, RolloutSample
from dashboard.models.server import ModelState, ModelSync, Server, ServerEvent, ServerState
from dashboard.models.sign_in import SignInCount
from dashboard.models.token import ApiToken
from dashboard.models.tuning import Tuning
from dashboard.models.upload import Upload, UploadFile
from dashboard.models.version import Version

__all__ = [
    "ApiToken",
    "AuditEntry",
    "BatchFile",
    "BatchJob",
    "BatchPart",
    "Capture",
    "Example",
    "Job",
    "Measurement",
    "MetricSample",
    "Model",
    "ModelState",
    "ModelSync",
    "Release",
    "ReleaseCheck",
    "ReleaseSpan",
    "Rollout",
    "RolloutFigures",
    "RolloutMismatch",
    "RolloutSample",
    "Server",
    "ServerEvent",
    "ServerState",
    "SignInCount",
    "Tuning",
    "Upload",
    "UploadFile",
    "Version",
]
