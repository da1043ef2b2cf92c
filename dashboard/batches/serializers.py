"""The shapes of batch jobs as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.batches.selectors import refusal_reasons
from dashboard.batches.services import MOST_ERRORS
from dashboard.models import BatchFile, BatchJob
from dashboard.servers.serializers import AskedServerSerializer
from dashboard.servers.services import LOCAL

_COLUMNS = serializers.ListField(child=serializers.CharField(max_length=1000), max_length=10_000)


class BatchFileSerializer(serializers.ModelSerializer[BatchFile]):
    class Meta:
        model = BatchFile
        fields = ["number", "name", "size", "received", "rows", "result_bytes"]


class BatchInputSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    datatype = serializers.CharField()
    shape = serializers.ListField(child=serializers.IntegerField(), help_text="Of one row; -1 for any.")
    columns = serializers.ListField(
        child=serializers.CharField(), help_text="One column, or one for each element; [] if none was found."
    )


class BatchOutputSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    datatype = serializers.CharField()
    column = serializers.CharField(help_text="The column of the result.")
    is_list = serializers.BooleanField(help_text="Whether a row's answer is a list.")


class BatchSerializer(serializers.ModelSerializer[BatchJob]):
    files = BatchFileSerializer(many=True)
    state = serializers.CharField(
        help_text="receiving, ready, or the state of its job: queued, running, succeeded, failed, cancelled."
    )
    step = serializers.CharField(source="job.step", default="", help_text="Rows done, rate, and time left, in words.")
    progress = serializers.IntegerField(source="job.progress", default=0, help_text="Per cent.")
    error = serializers.CharField(source="job.error", default="")
    version = serializers.CharField(
        source="plan.version", default="", help_text='The version that answers; "" before the start.'
    )
    server = serializers.CharField(source="plan.server", default=LOCAL, help_text="The server that answers.")
    reasons = serializers.SerializerMethodField(
        help_text="Some reasons why rows were refused, until the result has the reason of each row."
    )

    class Meta:
        model = BatchJob
        fields = [
            *(
                "id",
                "model_name",
                "version",
                "server",
                "format",
                "source",
                "state",
                "user_name",
                "files",
                "rows",
                "rows_done",
            ),
            *("error_rows", "job", "step", "progress", "error", "reasons", "created_at", "finished_at"),
        ]

    def get_reasons(self, batch: BatchJob) -> list[str]:
        return refusal_reasons(batch)


class AnnouncedFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(max_length=500, help_text="Its name ends in .csv, .tsv, .jsonl, .ndjson or .parquet.")
    size = serializers.IntegerField(min_value=1, help_text="Bytes.")


class BatchRequestSerializer(serializers.Serializer[Any]):
    """Either `files` or `source`."""

    model_name = serializers.CharField(max_length=200)
    files = serializers.ListField(child=AnnouncedFileSerializer(), default=list, max_length=1000)
    source = serializers.CharField(  # type: ignore[assignment]  # the metaclass takes it for a field
        default="",
        allow_blank=True,
        max_length=1000,
        help_text="A file or folder below SLIPWAY_SOURCE_FOLDERS, or an object or prefix below SLIPWAY_SOURCE_BUCKETS.",
    )


class BatchMappingSerializer(AskedServerSerializer):
    mapping = serializers.DictField(
        child=_COLUMNS, default=dict, help_text="Input -> columns, in place of the proposal for that input."
    )
    version = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=200,
        help_text='A number or an alias; "" for the version that clients get.',
    )


class BatchStartSerializer(BatchMappingSerializer):
    most_errors = serializers.IntegerField(
        default=MOST_ERRORS, min_value=0, max_value=2**53, help_text="The most rows that may be refused."
    )


class BatchResumeSerializer(serializers.Serializer[Any]):
    most_errors = serializers.IntegerField(
        required=False, min_value=0, max_value=2**53, help_text="A new bound on the rows that may be refused."
    )


class BatchRowSerializer(serializers.Serializer[Any]):
    values = serializers.DictField(help_text="The values of the file, by column.")
    answer = serializers.ListField(allow_null=True, help_text="The values of the outputs; null without an answer.")
    error = serializers.CharField(help_text="Why the row has no answer.")


class BatchPreviewSerializer(serializers.Serializer[Any]):
    columns = serializers.ListField(child=serializers.CharField())
    inputs = BatchInputSerializer(many=True)
    outputs = BatchOutputSerializer(many=True)
    version = serializers.CharField(help_text="The version that answers.")
    rows = BatchRowSerializer(many=True)
    problems = serializers.ListField(child=serializers.CharField(), help_text="Why it cannot start.")
