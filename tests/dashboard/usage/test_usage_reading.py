"""The usage log becomes rows: each count once, whatever is read twice, killed, damaged or replaced."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from dashboard.models import UsageDay, UsageFile
from dashboard.usage import log
from dashboard.usage.log import UsageReader
from dashboard.usage.selectors import kept_from, utc_today
from dashboard.usage.services import usage_forget
from repository.core.usage_log import Holder
from tests.dashboard.usage.logs import record, write_log

pytestmark = pytest.mark.django_db

DAY = utc_today()
A, B = "a" * 64, "b" * 64
ADA = Holder("ada: laptop", "ada", ("lab",))


def counted() -> dict[tuple[str, str], int]:
    return {(row.token_hash[0], row.model_name): row.requests for row in UsageDay.objects.all()}


def test_records_are_totals_so_reading_them_twice_counts_once(settings: Any) -> None:
    first = record(1, {(A, "m"): {"requests": 3}, (B, "m"): {"requests": 5}}, {A: ADA})
    write_log(settings.USAGE_LOG, DAY, first)
    reader = UsageReader()
    reader.read()
    write_log(settings.USAGE_LOG, DAY, record(2, {(A, "m"): {"requests": 7, "rows": 9}}), append=True)
    for one in (reader, reader, UsageReader(), UsageReader()):
        assert one.read() == ""
    assert counted() == {("a", "m"): 7, ("b", "m"): 5}
    row = UsageDay.objects.get(token_hash=A)
    assert (row.token_name, row.person, row.groups, row.rows) == ("ada: laptop", "ada", ["lab"], 9)
    assert UsageFile.objects.get().sequence == 2


def test_a_reader_that_dies_before_its_commit_counts_the_records_the_next_time(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(settings.USAGE_LOG, DAY, record(1, {(A, "m"): {"requests": 3}}))
    reader = UsageReader()

    class KilledError(Exception):
        pass

    def killed(*_: object) -> str:
        with transaction.atomic():
            apply(*_)
            raise KilledError

    apply = log._apply
    with monkeypatch.context() as patched:
        patched.setattr(log, "_apply", killed)
        with pytest.raises(KilledError):
            reader.read()
    assert counted() == {}
    reader.read()
    assert counted() == {("a", "m"): 3}


def test_a_half_written_record_waits_and_a_damaged_one_is_told(settings: Any) -> None:
    second = record(2, {(A, "m"): {"requests": 4}})
    write_log(settings.USAGE_LOG, DAY, record(1, {(A, "m"): {"requests": 3}}), second[:20])
    reader = UsageReader()
    assert reader.read() == ""
    assert counted() == {("a", "m"): 3}
    write_log(settings.USAGE_LOG, DAY, second[20:], append=True)
    reader.read()
    assert counted() == {("a", "m"): 4}
    write_log(settings.USAGE_LOG, DAY, b"damage\n", record(4, {(A, "m"): {"requests": 9}}), append=True)
    assert f"1 records of the usage log of {DAY} are damaged" in reader.read()
    assert counted() == {("a", "m"): 9}
    assert UsageFile.objects.get().damaged == 1


def test_a_replaced_file_is_read_from_its_beginning_and_one_that_lost_counts_lowers_none(settings: Any) -> None:
    write_log(settings.USAGE_LOG, DAY, *[record(n, {(A, "m"): {"requests": n}}) for n in range(1, 5)])
    reader = UsageReader()
    reader.read()
    path = settings.USAGE_LOG / f"{DAY}.log"
    beside = path.with_suffix(".tmp")
    beside.write_bytes(record(5, {(A, "m"): {"requests": 6}, (B, "m"): {"requests": 1}}))
    beside.replace(path)
    assert reader.read() == ""
    assert counted() == {("a", "m"): 6, ("b", "m"): 1}
    beside.write_bytes(record(1, {(A, "m"): {"requests": 2}}))
    beside.replace(path)
    assert "began anew" in reader.read()
    assert counted() == {("a", "m"): 6, ("b", "m"): 1}


def test_whole_months_older_than_the_setting_are_deleted_and_not_read_again(settings: Any) -> None:
    for day in (kept_from() - timedelta(days=1), kept_from(), DAY):
        write_log(settings.USAGE_LOG, day, record(1, {(A, "m"): {"requests": 3}}))
        UsageDay.objects.create(day=day, token_hash=A, model_name="m")
        UsageFile.objects.create(day=day)
    assert kept_from().day == 1
    assert 0 <= (DAY - timedelta(days=400) - kept_from()).days <= 30
    assert usage_forget() == 1
    UsageReader().read()
    kept = [(kept_from(), 3), (DAY, 3)]
    assert list(UsageDay.objects.order_by("day").values_list("day", "requests")) == kept
    assert UsageFile.objects.count() == 2


def test_without_a_log_there_is_nothing_to_read(settings: Any) -> None:
    assert UsageReader().read() == ""
    write_log(settings.USAGE_LOG, DAY)
    (settings.USAGE_LOG / "2026-99-99.log").write_bytes(b"x\n")
    assert UsageReader().read() == ""
    assert not UsageFile.objects.exists()


def test_totals_of_several_servers_add_up_whoever_reads_first(settings: Any) -> None:
    old = DAY - timedelta(days=3)
    for day in (DAY, old):
        write_log(settings.USAGE_LOG, day, record(1, {(A, "m"): {"requests": 3}}, {A: ADA}))
    reader = UsageReader()
    reader.read()
    for day in (DAY, old):
        write_log(
            settings.USAGE_LOG / "local-2", day, record(9, {(A, "m"): {"requests": 4}, (B, "m"): {"requests": 1}})
        )
    for one in (reader, UsageReader(), reader):
        assert one.read() == ""
        assert [row.requests for row in UsageDay.objects.filter(token_hash=A)] == [7, 7]
    for day in (DAY, old):
        write_log(settings.USAGE_LOG, day, record(2, {(A, "m"): {"requests": 5}}), append=True)
    for one in (reader, UsageReader()):
        one.read()
        assert [row.requests for row in UsageDay.objects.filter(token_hash=A)] == [9, 9]
    assert sorted(reader._totals) == [DAY]
