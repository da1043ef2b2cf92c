"""Reads the usage log of the bundled server into the database. `watch` calls it every few seconds.

The log has totals, which only grow. So a row takes the greater value, and reading a record twice, or by two processes, counts
nothing twice. A killed process reads on from the beginning of the files.
"""

import logging
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from django.conf import settings
from django.db import transaction

from dashboard.models import UsageDay, UsageFile
from dashboard.usage.selectors import kept_from
from repository.core.usage_log import COUNTERS, Counts, Holder, Key, day_files, day_of, decode

logger = logging.getLogger(__name__)

MOST_READ = 32 << 20  # bytes of a file that are read at once
_HELD = ("token_name", "person", "groups")
_NAME_CHARACTERS = UsageDay._meta.get_field("model_name").max_length or 0


@dataclass
class _Place:
    """How far this process has read a file. stamp: the file's inode. holders: the holders that the file names."""

    stamp: int = 0
    offset: int = 0
    holders: dict[str, Holder] = field(default_factory=dict)


class UsageReader:
    """Reads all files of the log, each from the place where the last call ended."""

    def __init__(self) -> None:
        self._places: dict[date, _Place] = {}

    def read(self) -> str:
        """Write what is new to the database. Return what a log of the program should say, or ""."""
        said = ""
        for path in day_files(Path(settings.USAGE_LOG)):
            day = day_of(path)
            if day is not None and day >= kept_from():
                said = self._read_file(day, path) or said
        return said

    def _read_file(self, day: date, path: Path) -> str:
        place = self._places.get(day, _Place())
        try:
            with path.open("rb") as file:
                inode = path.stat().st_ino
                if inode != place.stamp:  # the server has replaced the file
                    place = _Place(inode)
                file.seek(place.offset)
                lines = decode(file.read(MOST_READ))
        except FileNotFoundError:  # the server has removed an old day
            return ""
        if not lines.end:
            return ""
        holders = dict(place.holders)
        uses: dict[Key, Counts] = {}
        for record in lines.records:
            holders |= record.holders
            uses |= record.uses
        named = {digest for record in lines.records for digest in record.holders}
        said = ""
        if lines.records:
            last = lines.records[-1]
            said = _apply(day, uses, holders, named, (last.sequence, last.at), lines.damaged)
        self._places[day] = _Place(place.stamp, place.offset + lines.end, holders)  # after the commit
        return said


def _apply(
    day: date,
    uses: dict[Key, Counts],
    holders: dict[str, Holder],
    named: set[str],
    last: tuple[int, float],
    damaged: int,
) -> str:
    """Raise the day's rows to these totals. named: tokens whose holder may have changed. last: sequence and time of the last
    record. damaged: how many records of the file could not be read."""
    with transaction.atomic():
        UsageFile.objects.get_or_create(day=day)
        file = UsageFile.objects.select_for_update().get(day=day)
        digests = {digest for digest, _ in uses} | named
        rows = {
            (row.token_hash, row.model_name): row for row in UsageDay.objects.filter(day=day, token_hash__in=digests)
        }
        for (digest, model), counts in uses.items():
            key = digest, model[:_NAME_CHARACTERS]
            row = rows.get(key)
            if row is None:
                row = rows[key] = UsageDay(day=day, token_hash=digest, model_name=key[1])
            for name, count in zip(COUNTERS, counts, strict=True):
                setattr(row, name, max(getattr(row, name), count))
        for row in rows.values():
            holder = holders.get(row.token_hash)
            if holder is not None and (holder.token or holder.person):
                row.token_name, row.person, row.groups = holder.token[:300], holder.person[:150], list(holder.groups)
        UsageDay.objects.bulk_create(
            rows.values(),
            update_conflicts=True,
            unique_fields=["day", "token_hash", "model_name"],
            update_fields=[*COUNTERS, *_HELD],
            batch_size=500,
        )
        again = last[0] < file.sequence
        file.sequence, file.written_at, file.damaged = last[0], last[1], max(file.damaged, damaged)
        file.save()
    if again:
        return (
            f"the usage log of {day} began anew: what it had counted before stays, and the greater total of both counts"
        )
    if damaged:
        return f"{damaged} records of the usage log of {day} are damaged: totals of later records make up for them"
    return ""
