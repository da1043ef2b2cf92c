"""Measures the size of 30 days of metrics history, and the time that `watch` needs to store a second of it.

    python -m benchmarks.history --models 500

Every model has requests in every second, which is the most that the history can hold. The database is the one of DATABASE_URL,
by default a new SQLite file. The program prints the rows and bytes of each resolution, the milliseconds to store one second
after the tables are full, and the milliseconds of a chart.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from repository.core.histogram import bucket_of

if TYPE_CHECKING:
    from dashboard.metrics.usage import Usage
    from dashboard.models import Server

RATE = 20  # requests a second of each model
KINDS = 16  # different rows of each resolution: the bytes are those of drawn latencies, and not of one repeated row
BATCH = 20_000
HOUR = 3600


def drawn_usage(seconds: int, draw: random.Random) -> "Usage":
    """Return the usage of a model in so many seconds: latencies from a lognormal distribution around 4 ms, batches up to 8."""
    from dashboard.metrics.usage import Usage

    requests = RATE * seconds
    usage = Usage(success=requests, queue_count=requests, compute_count=requests, inferences=requests, pending=3)
    for _ in range(requests):
        took, waited = draw.lognormvariate(8.3, 0.5), draw.lognormvariate(6, 0.8)
        usage.success_ns += round(took * 1000)
        usage.queue_ns += round(waited * 1000)
        usage.compute_ns += round((took - waited) * 1000)
        size = draw.randint(1, 8)
        usage.batches[size] = usage.batches.get(size, 0) + 1
        usage.batch_ns[size] = usage.batch_ns.get(size, 0) + round(took * 1000)
        gap = draw.expovariate(RATE / 1e6)
        for counts, value in (
            (usage.request, took),
            (usage.queue, waited),
            (usage.compute, took - waited),
            (usage.gaps, gap),
        ):
            bucket = bucket_of(max(1, round(value)))
            counts[bucket] = counts.get(bucket, 0) + 1
    usage.executions = sum(usage.batches.values())
    usage.input_ns, usage.output_ns = usage.compute_ns // 20, usage.compute_ns // 20
    return usage


def fill(server: "Server", names: list[str], now: int) -> Iterator[tuple[int, int, int]]:
    """Write every row that is kept at `now`, and yield each resolution with its rows and the bytes of their data."""
    from django.db import connection, transaction

    from dashboard.metrics.samples import FINEST, RESOLUTIONS, Sample, encode, merge_samples

    table = "dashboard_metricsample (server_id, model_name, version, resolution, at, data)"
    draw = random.Random(1)
    for resolution, kept_s in RESOLUTIONS.items():
        drawn = [Sample(drawn_usage(resolution, draw).pack()) for _ in range(KINDS)]
        kinds = [encode(one if resolution == FINEST else merge_samples([one])) for one in drawn]
        times = range((now - kept_s) // resolution * resolution, now // resolution * resolution, resolution)
        rows = (
            (server.pk, name, 1 if name else 0, resolution, at, draw.choice(kinds))
            for at in times
            for name in ["", *names]
        )
        while batch := list(islice(rows, BATCH)):
            with transaction.atomic(), connection.cursor() as cursor:
                if connection.vendor == "postgresql":
                    with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                        for row in batch:
                            copy.write_row(row)
                else:
                    cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s)", batch)
        count = len(times) * (len(names) + 1)
        yield resolution, count, round(count * statistics.mean(map(len, kinds)))
    with connection.cursor() as cursor:  # PostgreSQL reads whole spans of an index of which it has no statistics yet
        cursor.execute("ANALYZE dashboard_metricsample")


def store(server: "Server", names: list[str], now: int, seconds: int) -> list[float]:
    """Store this many seconds as `watch` does. Return the milliseconds of each."""
    from dashboard.metrics.feed import Tick
    from dashboard.metrics.services import metrics_store_tick

    usage = drawn_usage(1, random.Random(2))
    took = []
    for at in range(now, now + seconds):
        tick = Tick(
            at, 1.0, {(name, 1): usage for name in names}, {"rss": 1 << 30, "cpu": 1.0, "threads": 9, "gpus": []}
        )
        began = time.perf_counter()
        metrics_store_tick(server, tick, at, at - 1)
        took.append((time.perf_counter() - began) * 1000)
    return took


def database_bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_total_relation_size('dashboard_metricsample')")
            return int(cursor.fetchone()[0])
        cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        return int(cursor.fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=130, help="how many seconds are stored and timed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-history-") as folder:
        measure(Path(folder), arguments.models, arguments.seconds)


def measure(folder: Path, models: int, seconds: int) -> None:
    os.environ["SLIPWAY_DATA"] = str(folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    import django

    django.setup()
    from django.core.management import call_command

    from dashboard.metrics.selectors import metrics_heatmap, metrics_history, metrics_series
    from dashboard.metrics.services import metrics_prune
    from dashboard.servers.services import server_ensure_local

    call_command("migrate", verbosity=0)
    server, names = server_ensure_local(), [f"model_{number:03}" for number in range(models)]
    empty, now = database_bytes(), (int(time.time()) // HOUR + 1) * HOUR  # a second that makes all coarser rows
    total = 0
    for resolution, rows, size in fill(server, names, now):
        total += rows
        print(f"{resolution:4} s: {rows:9,} rows, {size / rows:5.0f} bytes of data each", flush=True)
    held = database_bytes() - empty
    print(f"together: {total:,} rows, {held / 1e9:.2f} GB in the database, {held / total:.0f} bytes a row", flush=True)
    took = store(server, names, now, seconds)
    quiet = [ms for at, ms in enumerate(took) if at % 10]
    print(f"a second is stored in {statistics.median(quiet):.0f} ms (median), {max(took):.0f} ms (with all merges)")
    began = time.perf_counter()
    gone = metrics_prune(now + 60)
    print(f"pruning a minute: {gone:,} rows in {(time.perf_counter() - began) * 1000:.0f} ms")
    for label, span in (("15 minutes", 900), ("a day", 86_400), ("30 days", 30 * 86_400)):
        began = time.perf_counter()
        history = metrics_history(servers=[server], start=now - span, end=now, model_name=names[0])
        metrics_series(history)
        if span >= 86_400:
            metrics_heatmap(history)
        print(f"a chart of {label}: {(time.perf_counter() - began) * 1000:.0f} ms")
    print(f"at the end: {database_bytes() / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
