"""`manage.py up` on PostgreSQL behind PgBouncer, and on Redis: each is frozen, killed and emptied under it."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import psycopg
import pytest
import redis

from dashboard.jobs.outbox import WAITS
from tests.dashboard.conftest import relu_bytes
from tests.dashboard.supervisor.test_up import sign_in
from tests.dashboard.web_process import migrated_database
from tests.support import engines
from tests.support.engines import Engine
from tests.support.serving_process import PATIENCE_S, wait_until
from tests.support.up_process import Up

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(engines.MISSING), reason=f"needs Debian's packages {', '.join(engines.MISSING)}"),
]
HUNG_AFTER_S = 15
CLIENTS = 200
PAGES = ("/models/", "/jobs/", "/api/v1/models", "/readyz")


class House:
    """A running `up` and its engines."""

    def __init__(self, up: Up, client: httpx.Client, database: Engine, queue: Engine, direct: str) -> None:
        self.up, self.client, self.database, self.queue, self._direct = up, client, database, queue, direct
        assert sign_in(client, up).status_code == 302
        csrf = client.cookies["slipway_csrf"]
        client.headers.update({"Referer": up.dashboard_url, "X-CSRFToken": csrf})
        self.processes = self.present()

    def present(self) -> list[list[int]]:
        return [sorted(self.up.running(word)) for word in ("daphne", "watch", "celery", "serving")]

    def statuses(self) -> set[int]:
        return {self.client.get(page).status_code for page in PAGES}

    def serves(self) -> bool:
        answer = httpx.get(f"{self.up.http_url}/v2/models/digits/ready", trust_env=False, timeout=PATIENCE_S)
        return answer.status_code == 200

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._direct) as connection:
            return connection.execute(sql.encode()).fetchall()

    def upload(self, name: str) -> str:
        """Send the bytes of a model, and return the address of the upload."""
        content = relu_bytes()
        asked = {"model_name": name, "files": [{"path": "model.onnx", "size": len(content)}]}
        answer = self.client.post("/api/v1/uploads", json=asked)
        assert answer.status_code == 201, answer.text
        address = f"/api/v1/uploads/{answer.json()['id']}"
        sent = self.client.put(
            f"{address}/files/0?offset=0", content=content, headers={"Content-Type": "application/octet-stream"}
        )
        assert sent.status_code == 200, sent.text
        return address

    def state(self, upload: str) -> str:
        return str(self.client.get(upload).json()["state"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with (
        engines.postgres("max_connections=50") as database,
        engines.pgbouncer(database.port, sessions=40) as bouncer,
        engines.redis() as queue,
    ):
        direct = migrated_database(database.port, "house")
        given = {
            "DATABASE_URL": direct.replace(str(database.port), str(bouncer.port)),
            "REDIS_URL": f"redis://127.0.0.1:{queue.port}/0",
            "SLIPWAY_HUNG_AFTER_SECONDS": str(HUNG_AFTER_S),
            "SERVING_COMPILED": "no",
        }
        with Up(tmp_path_factory.mktemp("engines") / "data", **given) as running:
            running.start()
            with httpx.Client(base_url=running.dashboard_url, trust_env=False, timeout=PATIENCE_S) as client:
                yield House(running, client, database, queue, direct)


@pytest.fixture(autouse=True)
def nothing_is_replaced(house: House) -> Iterator[None]:
    """Whatever the engines do, `up` replaces no process."""
    wait_until(lambda: house.statuses() == {200} and house.serves(), what="everything answers")
    yield
    wait_until(lambda: house.statuses() == {200} and house.serves(), what="everything answers again")
    assert house.present() == house.processes


def away(house: House) -> None:
    """Check that pages and REST say so for longer than `up` bears silence, while models are served."""
    wait_until(lambda: house.statuses() == {503}, what="the sentence")
    over = time.monotonic() + 1.5 * HUNG_AFTER_S

    def was_said_until_then() -> bool:
        answer = house.client.get("/api/v1/models")
        assert answer.headers["Retry-After"] == "5"
        assert "the database does not answer" in answer.json()["error"]
        assert house.statuses() == {503}
        assert house.client.get("/livez").status_code == 200
        assert house.serves()
        return time.monotonic() > over

    wait_until(was_said_until_then, what="the time is over")


def test_a_frozen_database_is_noticed_and_replaces_no_process(house: House) -> None:
    house.database.signal(signal.SIGSTOP)
    try:
        away(house)
    finally:
        house.database.signal(signal.SIGCONT)


def test_a_database_that_is_killed_is_used_again_when_it_is_back(house: House) -> None:
    house.database.kill()
    try:
        wait_until(lambda: house.statuses() == {503}, what="the sentence")
        assert house.serves()
    finally:
        house.database.start()


def test_many_clients_share_few_sessions(house: House) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        cookies = dict(house.client.cookies)

        def ask(number: int) -> int:
            address = house.up.dashboard_url + PAGES[number % 3]
            return httpx.get(address, cookies=cookies, trust_env=False, timeout=PATIENCE_S).status_code

        statuses = Counter(clients.map(ask, range(CLIENTS)))
    assert set(statuses) <= {200, 503}
    assert statuses[200] > CLIENTS / 2


def test_jobs_wait_in_the_database_while_the_queue_is_frozen_and_run_once(house: House) -> None:
    uploads = [house.upload(name) for name in ("frozen", "emptied", "killed")]
    house.queue.signal(signal.SIGSTOP)
    try:
        answer = house.client.post(f"{uploads[0]}/complete")
        assert answer.status_code == 202
        assert house.query(f"SELECT step FROM dashboard_job WHERE id = {answer.json()['job']}") == [(WAITS,)]
        (beats,) = (house.up.data / "heartbeats").glob("worker.*")
        log = house.up.data / "logs" / "worker.log"
        wait_until(lambda: "Cannot connect to redis" in log.read_text(), what="a worker that connects again")
        before = beats.stat().st_mtime
        wait_until(lambda: beats.stat().st_mtime > before, what="its heartbeat meanwhile")
        assert "worker" not in house.client.get("/health").text
    finally:
        house.queue.signal(signal.SIGCONT)
    wait_until(lambda: house.state(uploads[0]) == "inspected", what="the job that waited")

    (worker,) = map(psutil.Process, house.up.running("celery"))
    worker.suspend()
    try:
        house.client.post(f"{uploads[1]}/complete")
        with redis.Redis(port=house.queue.port) as client:
            client.flushall()
    finally:
        worker.resume()
    wait_until(lambda: house.state(uploads[1]) == "inspected", what="the job that the queue lost")

    house.queue.kill()
    try:
        assert house.client.post(f"{uploads[2]}/complete").status_code == 202
    finally:
        house.queue.start()
    wait_until(lambda: house.state(uploads[2]) == "inspected", what="the job of a queue that was not there")

    rows = house.query("SELECT state, attempt FROM dashboard_job WHERE kind = 'inspect' ORDER BY id DESC LIMIT 3")
    assert rows == [("succeeded", 0)] * 3
