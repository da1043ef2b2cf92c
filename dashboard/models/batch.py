"""Batch jobs: files whose rows are sent through a model, and the parts in which their answers are stored."""

import uuid
from pathlib import Path
from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.job import Job
from dashboard.shared.choices import JobState


class BatchInput(TypedDict):
    """One input of the model, and the columns that fill it: one column, or one for each element.

    shape: of one row, without the dimension of the batch; -1 for a dimension that varies.
    """

    name: str
    datatype: str
    shape: list[int]
    columns: list[str]


class BatchOutput(TypedDict):
    """One output of the model, and the column that it becomes. is_list: whether a row's answer has several elements."""

    name: str
    datatype: str
    column: str
    is_list: bool


class BatchPlan(TypedDict, total=False):
    """The decisions of the person who started a batch job.

    version: the number or alias that answers. server: the name of the server that answers; missing in plans of earlier
    releases, and then it is LOCAL. most_errors: the most rows that may be refused before the job ends.
    """

    inputs: list[BatchInput]
    outputs: list[BatchOutput]
    version: str
    server: str
    most_errors: int


class BatchJob(models.Model):
    """One batch job. Its files are in data/batches/<id>/; batches.services describes them.

    source: the address of a file, folder or bucket that is read; "" for files that a person uploads.
    rows: None until all files are split. progress_attempt: the attempt of `job` that stored a part last.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    user_name = models.CharField(max_length=150, blank=True, default="")
    model_name = models.CharField(max_length=200, db_index=True)
    format = models.CharField(max_length=16)
    source = models.CharField(max_length=1000, blank=True, default="")
    plan: "models.JSONField[BatchPlan, BatchPlan]" = models.JSONField(default=dict)
    rows = models.PositiveBigIntegerField(null=True)
    rows_done = models.PositiveBigIntegerField(default=0)
    error_rows = models.PositiveBigIntegerField(default=0)
    progress_attempt = models.IntegerField(default=0)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="batch_jobs")
    created_at = models.DateTimeField(default=timezone.now)
    touched_at = models.DateTimeField(default=timezone.now, db_index=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"batch job for {self.model_name} ({self.state})"

    @property
    def folder(self) -> Path:
        return Path(settings.BATCH_DIR) / str(self.id)

    @property
    def state(self) -> str:
        """The state of its job; before that "receiving" or "ready"."""
        if self.finished_at is not None:
            return JobState.SUCCEEDED
        if self.job is not None:
            return self.job.state
        if self.plan:  # its job is not listed any more
            return JobState.CANCELLED
        return "receiving" if any(file.received < file.size for file in self.files.all()) else "ready"

    @property
    def under_way(self) -> bool:
        return self.finished_at is None and self.state in (JobState.QUEUED, JobState.RUNNING)


class BatchFile(models.Model):
    """One file of a batch job. rows: None until it is split into parts. result_bytes: None until its result is whole."""

    batch = models.ForeignKey(BatchJob, on_delete=models.CASCADE, related_name="files")
    number = models.PositiveIntegerField()
    name = models.CharField(max_length=500)
    size = models.PositiveBigIntegerField()
    received = models.PositiveBigIntegerField(default=0)
    rows = models.PositiveBigIntegerField(null=True)
    result_bytes = models.PositiveBigIntegerField(null=True)

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["batch", "number"], name="batch_file_number_once")]

    def __str__(self) -> str:
        return f"{self.name} of batch job {self.batch_id}"


class BatchPart(models.Model):
    """Consecutive rows of a file. `offset` and `length` are bytes of the file, or rows of a Parquet file.

    done: the answers are in the part's file, whole, and on the disk.
    """

    file = models.ForeignKey(BatchFile, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    length = models.PositiveBigIntegerField()
    rows = models.PositiveIntegerField()
    errors = models.PositiveIntegerField(default=0)
    done = models.BooleanField(default=False)

    class Meta:
        ordering = ["file", "number"]
        constraints = [models.UniqueConstraint(fields=["file", "number"], name="batch_part_number_once")]

    def __str__(self) -> str:
        return f"part {self.number} of {self.file}"
