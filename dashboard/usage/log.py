"""Reads the usage logs of the bundled servers into the database. `watch` calls it every few seconds.

A log has totals, which only grow. So a row takes the greater value, and reading a record twice, or by two processes, counts
nothing twice. A killed process reads on from the beginning of the files. With several bundled servers, each further one has a
folder of its own in that of the first, and a row takes the sum of their totals.
"""

import logging
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction

from dashboard.models import UsageDay, UsageFile
from dashboard.usage.selectors import kept_from, utc_today
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
        self._places: dict[Path, _Place] = {}
        # Of a day with several logs, the totals of each, while its files grow.
        self._totals: dict[date, dict[Path, dict[Key, Counts]]] = {}

    def read(self) -> str:
        """Write what is new to the database. Return what a log of the program should say, or ""."""
        said = ""
        folder = Path(settings.USAGE_LOG)
        others = sorted(path for path in folder.glob("*/") if path.is_dir())
        days: dict[date, list[Path]] = {}
        for path in [path for one in (folder, *others) for path in day_files(one)]:
            day = day_of(path)
            if day is not None and day >= kept_from():
                days.setdefault(day, []).append(path)
        for day, paths in sorted(days.items()):
            if len(paths) > 1 and day not in self._totals:  # the sum needs the totals of all
                if all(map(self._is_read, paths)):
                    continue
                self._totals[day] = {}
                for path in paths:
                    self._places.pop(path, None)
            for path in paths:
                said = self._read_file(day, path) or said
            if day < utc_today() - timedelta(days=1) and all(map(self._is_read, paths)):
                self._totals.pop(day, None)  # it will hardly grow
        return said

    def _is_read(self, path: Path) -> bool:
        try:
            found = path.stat()
        except FileNotFoundError:
            return True
        place = self._places.get(path, _Place())
        return (place.stamp, place.offset) == (found.st_ino, found.st_size)

    def _summed(self, day: date, path: Path, uses: dict[Key, Counts]) -> dict[Key, Counts]:
        """Return the sums over all logs of a day, for the keys of a record of one log."""
        of_day = self._totals.get(day)
        if of_day is None:
            return uses
        own = of_day.setdefault(path, {})
        own |= {key: tuple(map(max, counts, own.get(key, counts))) for key, counts in uses.items()}
        found = {key: [totals[key] for totals in of_day.values() if key in totals] for key in uses}
        return {key: tuple(map(sum, zip(*parts, strict=True))) for key, parts in found.items()}

    def _read_file(self, day: date, path: Path) -> str:
        place = self._places.get(path, _Place())
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
            several = day in self._totals
            said = _apply(
                day, self._summed(day, path, uses), holders, named, (last.sequence, last.at), lines.damaged, several
            )
        self._places[path] = _Place(place.stamp, place.offset + lines.end, holders)  # after the commit
        return said


def _apply(
    day: date,
    uses: dict[Key, Counts],
    holders: dict[str, Holder],
    named: set[str],
    last: tuple[int, float],
    damaged: int,
    several: bool,
) -> str:
    """Raise the day's rows to these totals. named: tokens whose holder may have changed. last: sequence and time of the last
    record. damaged: how many records of the file could not be read. several: whether the day has several logs, whose sequences
    cannot be compared."""
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
        again = not several and last[0] < file.sequence
        written_at = max(last[1], file.written_at) if several else last[1]
        file.sequence, file.written_at, file.damaged = last[0], written_at, max(file.damaged, damaged)
        file.save()
    if again:
        return (
            f"the usage log of {day} began anew: what it had counted before stays, and the greater total of both counts"
        )
    if damaged:
        return f"{damaged} records of the usage log of {day} are damaged: totals of later records make up for them"
    return ""
