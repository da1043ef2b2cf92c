"""`make bench-fleet BENCH=costs`: measures what viewers, charts, requests and models cost the web process and PostgreSQL.

python -m benchmarks.fleet costs [servers] [models] [--servers 3 50 200] [--models 1000 10000] [--viewers 50] [--seconds 20]

`servers`: live charts, history and inference requests with so many stand-ins of production, without `watch`.
`models`: the pages with rows of so many models on REPORTING servers. CPU is CPU time, so that other programs count little.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx

from benchmarks.dashboard.viewers import watch
from benchmarks.fleet.house import House, Web

PARTS = ("servers", "models")
MODELS, BUSY = 4, 3
REPORTING = 3  # the servers of the rows of models
ASKED = 60  # inference requests for each request of a page
OLD_S = 6.0  # what pages have read of all models is used for 5 s
HOUR = 3600.0
SPANS = {"5 min": 300.0, "1 h": HOUR, "1 day": 24 * HOUR}
# Which rows the history has: resolution -> seconds back. Charts of these spans read no others.
KEPT = {1: 600.0, 10: HOUR, 60: 6 * HOUR, 600: 25 * HOUR, 3600: 25 * HOUR}
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}


class Cost(NamedTuple):
    """The cost of one answer. cpu_ms: of the web process; database_ms: CPU time of PostgreSQL."""

    cpu_ms: float
    database_ms: float
    statements: float
    ms: float
    kilobytes: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="both without")
    parser.add_argument("--servers", type=int, nargs="+", default=[3, 50, 200])
    parser.add_argument("--models", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--times", type=int, default=5, help="requests of each page")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement of viewers")
    given = parser.parse_args(arguments)
    wanted = [(part, count) for part in given.parts or PARTS for count in getattr(given, part)]
    if len(wanted) == 1:
        part, count = wanted[0]
        (_print_servers if part == "servers" else _print_models)(count, given)
        return
    for part, count in wanted:  # each in a process of its own, as in __main__
        command = [sys.executable, "-m", "benchmarks.fleet", "costs", part, f"--{part}", str(count)]
        rest = ["--times", str(given.times), "--viewers", str(given.viewers), "--seconds", str(given.seconds)]
        subprocess.run([*command, *rest], check=True)


# -- servers ---------------------------------------------------------------------------------------------------------
class Fleet(House):
    """Stand-ins that serve every model, as the database says, and no `watch`."""

    def _fill(self) -> None:
        from dashboard.models import ModelState, Server, ServerState

        super()._fill()
        ServerState.objects.update(state="ready")
        for server in Server.objects.all():
            names = map(_name, range(self._models))
            ModelState.objects.bulk_create(
                ModelState(server=server, model_name=name, version=1, state="READY") for name in names
            )

    def _start(self) -> None:
        self._start_stand_ins("--loaded")


def _print_servers(servers: int, given: argparse.Namespace) -> None:
    with Fleet(servers, MODELS, BUSY) as house:
        web = house.web()
        _fill_history(house)
        print(f"\n{HEAD.format(f'one answer, {servers} servers')}")
        for name, cost in _answers(house, web, given.times):
            print(_row(name, cost), flush=True)
        print(
            f"\n| viewers, {servers} servers | cores of web | of PostgreSQL | statements | messages | parts a second |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        for row in _viewers(house, web, given.viewers, given.seconds):
            print(row, flush=True)
        print(f"web: {web.process.memory_info().rss >> 20} MiB resident", flush=True)


def _viewers(house: House, web: Web, many: int, seconds: float) -> Iterator[str]:
    live, model = ("/ws/live/", ()), (f"/ws/live/?model={_name(0)}", ())
    one = f"/ws/live/?server=s-{house.ports[0]}"
    overview = ("/ws/live/", ("/?part=now", "/?part=busy", "/?part=changes", "/health"))
    listed = ("/ws/live/", ("/models/", "/health"))
    opened = f"/models/{_name(0)}"
    shown = (f"/ws/live/?model={_name(0)}", (f"{opened}/head?tab=overview", f"{opened}/?part=now", "/health"))
    for name, count, watched in (
        ("nobody", 0, [live]),
        ("1: live charts of one server", 1, [(one, ())]),
        ("1: live charts of production", 1, [live]),
        (f"{many}: live charts of production", many, [live]),
        (f"{many}: live charts of one model", many, [model]),
        (f"{many}: overview, list, a model, with their parts", many, [overview, listed, shown]),
    ):
        found = []

        def work(name: str = name, count: int = count, watched: Sequence[tuple[str, Sequence[str]]] = watched) -> None:
            watching = watch(
                web, web.process.pid, name, count, any(parts for _, parts in watched), False, seconds, watched
            )
            found.append(asyncio.run(watching))  # noqa: B023  # called in this turn of the loop

        cost = house.cost(work)
        [told] = found
        yield (
            f"| {name} | {told.share:.3f} | {cost['postgres']:.3f} | {cost['statements']:.0f} | {told.messages:.1f} | "
            f"{told.parts:.1f} |"
        )


def _answers(house: House, web: Web, times: int) -> Iterator[tuple[str, Cost]]:
    name, end = _name(0), time.time()
    with httpx.Client(base_url=web.url, cookies=web.cookies, timeout=120.0, trust_env=False) as client:

        def asked(path: str) -> Cost:
            return _cost(house, web, client, path, times)

        for span, seconds in SPANS.items():
            for what, more in (
                ("of all", ""),
                ("of a model", f"&model={name}"),
                ("apart", f"&model={name}&version=servers"),
            ):
                yield f"history {what}, {span}", asked(f"/metrics?start={end - seconds}&end={end}{more}")
        for path in ("/", "/models/", f"/models/{name}/", f"/models/{name}/playground", "/servers/", "/environments/"):
            yield f"`{path}`", asked(path)
    infer = f"/api/v1/models/{name}/infer?server=s-{house.ports[0]}"
    headers = {"Authorization": f"Bearer {_token(house)}"}
    with httpx.Client(base_url=web.url, headers=headers, timeout=60.0, trust_env=False) as client:
        yield "an inference request", _cost(house, web, client, infer, ASKED * times, 1)
        yield "an inference request, 8 at once", _cost(house, web, client, infer, ASKED * times, 8)


def _cost(house: House, web: Web, client: httpx.Client, path: str, times: int, at_once: int = 0) -> Cost:
    """Return the cost of an answer. at_once: so many inference requests at once; 0: GET."""
    sizes, took = [], []

    def ask(_: int = 0) -> None:
        began = time.monotonic()
        answer = client.post(path, json=BODY) if at_once else client.get(path)
        answer.raise_for_status()
        sizes.append(answer.num_bytes_downloaded)
        took.append(time.monotonic() - began)

    ask()
    sizes.clear()
    took.clear()
    with ThreadPoolExecutor(max(1, at_once)) as threads:
        spent = house.spent(lambda: [*threads.map(ask, range(times))])
    per = {key: value / times for key, value in spent.items()}
    web_ms, database_ms = 1000 * per["web"], 1000 * per["postgres"]
    return Cost(web_ms, database_ms, per["statements"], 1000 * statistics.median(took), statistics.mean(sizes) / 1000)


def _token(house: House) -> str:
    from dashboard.accounts.tokens import token_create

    return token_create(user=house.actor.user, actor=house.actor, name="costs", rights=["infer"])[1]


def _fill_history(house: House) -> None:
    """Write the history of one busy model and of each server, as `watch` does of two instances with 40 requests a second."""
    import psycopg

    from benchmarks.history import drawn_usage
    from dashboard.metrics.samples import FINEST, Sample, encode, merge_samples
    from dashboard.models import MetricSample, Server
    from tests.dashboard.feeds import PROCESS

    MetricSample.objects.all().delete()
    servers, now = list(Server.objects.values_list("pk", flat=True)), int(time.time())
    columns = "dashboard_metricsample (server_id, model_name, version, resolution, at, data)"
    with psycopg.connect(house.database) as connection, connection.cursor() as cursor:
        for resolution, kept in KEPT.items():
            drawn = Sample(drawn_usage(resolution, random.Random(resolution)).pack(), PROCESS)
            data = encode(drawn if resolution == FINEST else merge_samples([drawn]))
            times = range(int(now - kept) // resolution * resolution, now // resolution * resolution, resolution)
            with cursor.copy(f"COPY {columns} FROM STDIN") as copy:
                for at in times:
                    for server in servers:
                        for name in ("", _name(0)):
                            copy.write_row((server, name, 1 if name else 0, resolution, at, data))
    with psycopg.connect(house.database, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE dashboard_metricsample")


def _name(number: int) -> str:
    return f"model-{number:04}"


# -- models ----------------------------------------------------------------------------------------------------------
class Rows(House):
    """The rows of many models on a few servers, and no server, nor `watch`, that runs."""

    def _fill(self) -> None:
        from django.contrib.auth import get_user_model
        from django.core.management import call_command

        from dashboard.access.authorisation import Actor
        from dashboard.models import Server, ServerState
        from tests.dashboard.many_rows import add_models, add_samples, add_servers
        from tests.support.model_pages import model_name

        call_command("migrate", verbosity=0)
        self.actor = Actor(user=get_user_model().objects.create_superuser("admin"))
        first = Server.objects.create(name="local", http_url="http://x", grpc_url="x", metrics_url="http://x")
        ServerState.objects.create(server=first, state="ready")
        before = self.bytes()
        (self._folder / "data" / "models").mkdir(parents=True, exist_ok=True)
        add_models(first, range(self._models), versions=2, releases=2)
        self.each = (self.bytes() - before) / self._models
        add_servers(first, REPORTING - 1)
        self.each_on_server = (self.bytes() - before) / self._models - self.each
        add_samples(first, [model_name(number) for number in range(20)], time.time())

    def _start(self) -> None:
        pass

    def bytes(self) -> int:
        import psycopg

        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("ANALYZE")
            sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'dashboard_%' AND relkind = 'r'"
            found = connection.execute(sizes).fetchone()
        return int(found[0]) if found else 0


def _print_models(models: int, given: argparse.Namespace) -> None:
    from tests.support.model_pages import model_name

    with Rows(REPORTING, models, 0) as house:
        from dashboard.models import ModelState

        web = house.web()
        each = f"{house.each / 1000:.1f} KB each, and {house.each_on_server / (REPORTING - 1) / 1000:.1f} KB for each further"
        print(f"\n{models} models with 2 versions and 2 releases on {REPORTING} servers: {each} server")
        print(HEAD.format(f"one answer, {models} models"))
        one = f"/models/{model_name(models // 2)}"
        last = models // 100
        lists = f"/ /models/ /models/?page={last} /models/?q=model_99 /models/?sort=-rps /?part=busy /health"
        others = "/servers/ /servers/local/ /environments/ /places /rollouts/ /jobs/ /api/v1/models /api/v1/servers"
        with httpx.Client(base_url=web.url, cookies=web.cookies, timeout=600.0, trust_env=False) as client:
            for path in f"{lists} {one}/ {one}/playground {others}".split():
                print(_row(f"`{path}`", _cost(house, web, client, path, given.times)), flush=True)

            def changed() -> None:
                state = ModelState.objects.filter(server__name="local").first()
                assert state is not None
                state.save()
                client.get("/models/").raise_for_status()

            for when, work in (
                ("a change", changed),
                (f"{OLD_S:.0f} s", lambda: client.get("/models/").raise_for_status()),
            ):
                spent = house.spent(work)
                print(
                    f"`/models/` after {when}: {1000 * spent['web']:.0f} ms of CPU, PostgreSQL {1000 * spent['postgres']:.0f}"
                )
                time.sleep(OLD_S)
        print(f"web: {web.process.memory_info().rss >> 20} MiB resident", flush=True)


HEAD = "| {} | CPU ms | PostgreSQL ms | statements | ms | KB |\n| --- | --- | --- | --- | --- | --- |"


def _row(name: str, cost: Cost) -> str:
    return (
        f"| {name} | {cost.cpu_ms:.1f} | {cost.database_ms:.1f} | {cost.statements:.0f} | {cost.ms:.0f} | "
        f"{cost.kilobytes:.0f} |"
    )
