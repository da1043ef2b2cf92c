"""Any process of an installation is killed or stopped while alerts fire and a capture runs: every alert is told once by each
channel, and the capture accounts for each request that it chose.

A message that was on its way when its sender was killed comes again, with the same id, by which its receiver takes it once.
"""

import os
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import httpx
import pytest

from dashboard.alerts.outbox import CLAIM_S
from tests.support.alert_sinks import Got, Sinks
from tests.support.frontend_workers import is_frontend_worker
from tests.support.rollout_house import MODEL, PARTS, RolloutHouse
from tests.support.serving_process import START_TIMEOUT_S, kill_and_wait, wait_until

pytestmark = pytest.mark.long
ON_ITS_WAY_S = 0.3  # so long the receivers keep a message before they answer


@pytest.mark.timeout(2 * START_TIMEOUT_S)
def test_a_kill_at_a_message_tells_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    with Sinks(ON_ITS_WAY_S) as sinks, running(tmp_path, sinks) as house:
        for part in ("worker", "watch", "dashboard"):
            told_under(house, sinks, part, lambda part=part: house.kill(part))
        told_once(house, sinks)


@pytest.mark.soak
def test_each_process_is_killed_and_stopped_in_turn(tmp_path: Path) -> None:
    workers = {"SLIPWAY_SERVER_FLAGS": "--frontend-workers=2"}
    with Sinks(ON_ITS_WAY_S) as sinks, running(tmp_path, sinks, **workers) as house:
        for part in (*PARTS, "up"):
            told_under(house, sinks, f"{part} killed", lambda part=part: house.kill(part))
        told_under(house, sinks, "model killed", lambda: kill_and_wait(house.process_of(1)))
        told_under(house, sinks, "frontend killed", lambda: kill_and_wait(frontend(house)))
        for part in PARTS:
            told_under(house, sinks, f"{part} stopped", lambda part=part: stop_for(house.pid(part), 2))
            # Another process takes the message over; the stopped one wakes up in the middle of sending it.
            told_under(house, sinks, f"{part} stopped long", lambda part=part: stop_for(house.pid(part), CLAIM_S + 10))
        house.up.query("DELETE FROM dashboard_apitoken WHERE name LIKE 'turn %'")
        wait_until(lambda: not open_alerts(house), 10 * START_TIMEOUT_S, "all is resolved")
        told_once(house, sinks, ended=True)


@contextmanager
def running(folder: Path, sinks: Sinks, **environment: str) -> Iterator[RolloutHouse]:
    """An installation that tells people, and captures requests that are answered all the time."""
    with RolloutHouse(folder, "admin", **sinks.environment, **environment) as house:
        for kind, address in (("webhook", sinks.address), ("email", "oncall@example.org")):
            house.call("POST", "alerts/channels", json={"name": kind, "kind": kind, "address": address})
        capture = house.call("POST", f"models/{MODEL}/captures", json={"percent": 100, "consent": True})["id"]
        with house.asking():
            yield house
        address = f"models/{MODEL}/captures/{capture}/stop"
        wait_until(lambda: done(house, address), START_TIMEOUT_S, "the dashboard is there again")
        found = {}

        def ended() -> bool:
            found.update(house.call("GET", f"models/{MODEL}/captures/{capture}")["counts"] or {})
            return bool(found.get("ended"))

        wait_until(ended, what="the capture has ended")
        assert found["waiting"] == 0
        assert found["chosen"] == found["written"] + sum(found["dropped"].values()) + found["lost"], found
        assert found["written"] > 0


def done(house: RolloutHouse, address: str) -> bool:
    with suppress(httpx.TransportError):
        house.call("POST", address)
        return True
    return False


def told_under(house: RolloutHouse, sinks: Sinks, turn: str, harm: Callable[[], object]) -> None:
    """Plant a fault, do harm when its message is on its way, and wait until both channels have told it."""
    done: list[Thread] = []

    def at_post() -> None:
        sinks.on_post = lambda: None
        thread = Thread(target=harm)
        thread.start()
        done.append(thread)

    sinks.on_post = at_post
    plant(house, turn)
    title = f"Token turn {turn} of"
    wait_until(lambda: done, START_TIMEOUT_S, f"{turn}: a message")
    done[0].join()

    def told() -> bool:
        return sent(house, title) == 2 and bool(sinks.got(title)) and any(title in one.title for one in sinks.mails)

    wait_until(told, START_TIMEOUT_S, f"{turn}: both messages")


def plant(house: RolloutHouse, turn: str) -> None:
    """Let a token end soon, without any process that may be killed meanwhile."""
    row = {
        "name": f"turn {turn}",
        "hash": uuid.uuid4().hex,
        "prefix": "x",
        "rights": "[]",
        "model_names": "[]",
        "created_at": "2026-01-01 00:00:00",
        "expires_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 86400)),
        "user_id": house.up.query("SELECT id FROM auth_user WHERE username = 'admin'")[0][0],
    }
    marks = ", ".join("?" * len(row))
    house.up.query(f"INSERT INTO dashboard_apitoken ({', '.join(row)}) VALUES ({marks})", *row.values())


def sent(house: RolloutHouse, title: str) -> int:
    joined = "dashboard_alertdelivery d JOIN dashboard_alert a ON a.id = d.alert_id"
    asked = f"SELECT count(*) FROM {joined} WHERE d.what = 'fired' AND d.state = 'sent' AND a.title LIKE ?"
    return int(house.up.query(asked, f"{title}%")[0][0])


def open_alerts(house: RolloutHouse) -> int:
    """Return how many alerts fire or are to be told, and then how many messages are to be sent."""
    untold = "state = 'resolved' AND told_at IS NOT NULL AND told_end_at IS NULL"
    alerts = house.up.query(f"SELECT count(*) FROM dashboard_alert WHERE state = 'firing' OR {untold}")[0][0]
    waiting = "SELECT count(*) FROM dashboard_alertdelivery WHERE state IN ('waiting', 'sending')"
    return int(alerts or house.up.query(waiting)[0][0])


def told_once(house: RolloutHouse, sinks: Sinks, *, ended: bool = False) -> None:
    """Check what came, against what the installation says: each begin and end of each alert once by each channel."""
    states = dict(house.up.query("SELECT state, count(*) FROM dashboard_alertdelivery GROUP BY state"))
    if ended:
        assert set(states) == {"sent"}, states
    by_post: dict[tuple[str, str], set[str]] = defaultdict(set)
    for got, body in sinks.posts:
        by_post[body["alert"], got.what].add(got.uid)
    assert all(len(uids) == 1 for uids in by_post.values()), by_post
    by_mail: dict[tuple[str, str], set[str]] = defaultdict(set)
    for mail in sinks.mails:
        by_mail[mail.title, mail.what].add(mail.uid)
    turns = {
        title: uids for (title, what), uids in by_mail.items() if title.startswith("Token turn") and what == "fired"
    }
    assert all(len(uids) == 1 for uids in turns.values()), turns
    uids = {
        str(uuid.UUID(uid)) for (uid,) in house.up.query("SELECT uid FROM dashboard_alertdelivery WHERE state = 'sent'")
    }
    came = {got.uid for got, _ in sinks.posts} | {id_of(mail) for mail in sinks.mails}
    assert uids <= came, "what counts as sent has arrived"
    faults = {title for (title, what) in by_mail if title.startswith("Token turn")}
    posts = [got for got, _ in sinks.posts if got.title.startswith("Token turn") and got.what == "fired"]
    print(f"{len(faults)} faults, {len(posts)} posts, {len(sinks.posts)} posts of {len(by_post)} messages in all")
    assert len({got.uid for got in posts}) == len(faults) == len(turns)


def id_of(mail: Got) -> str:
    return mail.uid.strip("<>").partition("@")[0]


def stop_for(pid: int, seconds: float) -> None:
    """Stop a process for a time: that it wakes up later is what is tested."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        time.sleep(seconds)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    except ProcessLookupError:  # `up` has replaced it
        pass
    finally:
        os.close(pidfd)


def frontend(house: RolloutHouse) -> int:
    return next(pid for pid in sorted(house.up.processes()) if is_frontend_worker(pid))
