"""What each migration demands of programs that do not have it."""

from django.db import models


class SchemaChange(models.Model):
    """`shared.release` writes and reads the rows, in every release the same: earlier programs read them too."""

    migration = models.CharField(max_length=255, unique=True)
    release = models.CharField(max_length=32)  # the one whose program wrote the row
    minimum_release = models.CharField(max_length=32, blank=True, default="")  # "" if any release may run

    def __str__(self) -> str:
        return self.migration
