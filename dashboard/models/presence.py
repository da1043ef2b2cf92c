"""What machines with one PostgreSQL tell each other. Only `postgresql.relay` uses it; on SQLite it stays empty."""

from django.db import models


class Heartbeat(models.Model):
    """A process of one machine. machine: the key of its data folder; process: its number; since: Unix time of its start.

    All times are of the database's clock: beat_at is the last heartbeat, seen_at when its machine last told it. ended: whether
    its machine knows that it has ended.
    """

    machine = models.CharField(max_length=32)
    name = models.CharField(max_length=16)
    host = models.CharField(max_length=255)
    process = models.BigIntegerField()
    since = models.BigIntegerField()
    beat_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    ended = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["machine", "name", "process", "since"], name="one_heartbeat_a_process"),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.process} on {self.host}"


class TableMark(models.Model):
    """When a machine last changed a table. Each machine has rows of its own, so that no machine waits for another's."""

    machine = models.CharField(max_length=32)
    table = models.CharField(max_length=64)
    at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["machine", "table"], name="one_mark_a_table_and_machine"),)

    def __str__(self) -> str:
        return f"{self.table} on {self.machine}"
