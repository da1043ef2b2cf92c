"""The identity of the installation, by which a machine with other keys or another shared folder is recognised."""

from django.db import models


class Installation(models.Model):
    """The only row has the key 1. It exists once a process has started that does not keep everything in one folder, and after a
    backup or restore."""

    identity = models.CharField(max_length=64)  # the content of the file `installation` in the shared folder
    marked = models.BooleanField(default=False)  # whether that file has been written
    keys: "models.JSONField[dict[str, str], dict[str, str]]" = models.JSONField(
        default=dict
    )  # setting -> hash of the key
    # The backup from which it was restored, until a person lets it control its servers (access.control).
    restored = models.CharField(max_length=32, blank=True, default="", db_default="")

    def __str__(self) -> str:
        return self.identity
