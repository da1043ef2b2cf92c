"""The lease of the watcher that leads."""

from django.db import models
from django.db.models.functions import Now


class WatchLease(models.Model):
    """One row. number: the fencing number, which rises whenever a watcher takes the lease. until: by the database's clock."""

    holder = models.CharField(max_length=300, blank=True, default="")  # machine, process and a random part
    number = models.PositiveBigIntegerField(default=0)
    since = models.DateTimeField(null=True)
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.number}: {self.holder}"

    @staticmethod
    def holder_of(host: str, pid: int) -> str:
        """Return how the holder begins that is this process of this machine."""
        return f"{host[:200]} (process {pid}, "

    @classmethod
    def held(cls) -> "WatchLease | None":
        """Return the lease if a watcher has it now."""
        return cls.objects.filter(until__gt=Now()).exclude(holder="").first()
