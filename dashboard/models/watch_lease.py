"""The lease of the watcher that leads."""

from django.db import models


class WatchLease(models.Model):
    """One row. number: the fencing number, which rises whenever a watcher takes the lease. until: by the database's clock."""

    holder = models.CharField(max_length=300, blank=True, default="")  # machine, process and a random part
    number = models.PositiveBigIntegerField(default=0)
    since = models.DateTimeField(null=True)
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.number}: {self.holder}"
