"""The usage log counts each answered request once, and survives restarts, kills, damage and a full disk."""

import asyncio
from datetime import date, timedelta
from pathlib import Path

import pytest

from repository.core.usage_log import COUNTERS, Holder, Record, day_files, decode, encode
from serving.cli.options import Options
from serving.core.errors import ServingError
from serving.usage.counter_page import CHUNK_SLOTS, KEY_FROM, SLOT, CounterPage
from serving.usage.ledger import Ledger, utc_day
from serving.usage.usage_log import UsageLog
from tests.serving.frontends.raw_http import RawClient
from tests.serving.usage.auth_files import digest, entry, logged, write_auth
from tests.serving.usage.test_quotas import ask
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess, wait_until

DAY = date(2026, 3, 1)
KEY = (digest("a"), "m")
TEN = tuple([10] * len(COUNTERS))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_killed_and_a_stopped_server_go_on_with_every_count(tmp_path: Path, workers: str) -> None:
    onnx_identity(tmp_path / "models", dims=[1], max_batch_size=8)
    quota = {"of": "token", "name": digest("a"), "requests_per_day": 15}
    auth = write_auth(tmp_path / "auth.json", [entry("a", "ada")], [quota])
    log = tmp_path / "usage"
    flags = (f"--auth-file={auth}", f"--usage-log={log}", f"--frontend-workers={workers}")
    for ends in ("kill", "terminate", "kill"):
        with ServerProcess(tmp_path / "models", *flags) as server:
            with RawClient(server.http) as client:
                assert [ask(client, "a", 3).status for _ in range(4)] == [200] * 4
            getattr(server, ends)()
    with ServerProcess(tmp_path / "models", *flags) as server, RawClient(server.http) as client:
        assert [ask(client, "a", 3).status for _ in range(4)] == [200, 200, 200, 429]
        server.terminate()
    counted = logged(log, "a")["a", "identity"]
    assert counted["compute_ns"] > 0
    del counted["compute_ns"]
    assert counted == {
        "requests": 15,
        "failed": 0,
        "refused": 1,
        "rows": 45,
        "bytes_in": 180,
        "bytes_out": 180,
        "tokens_in": 0,
        "tokens_out": 0,
    }


def test_failed_requests_count_as_failed_and_unknown_models_not_at_all(tmp_path: Path) -> None:
    onnx_identity(tmp_path / "models", dims=[1], max_batch_size=8)
    auth = write_auth(tmp_path / "auth.json", [entry("a")])
    log = tmp_path / "usage"
    flags = (f"--auth-file={auth}", f"--usage-log={log}")
    with ServerProcess(tmp_path / "models", *flags) as server, RawClient(server.http) as client:
        headers = {"Authorization": "Bearer a"}
        assert client.request("POST", "/v2/models/none/infer", b'{"inputs": []}', **headers).status == 404
        assert client.request("POST", "/v2/models/identity/infer", b'{"inputs": []}', **headers).status == 400
        wait_until(lambda: logged(log, "a"), what="the record")
        assert [(key, one["failed"], one["requests"]) for key, one in logged(log, "a").items()] == [
            (("a", "identity"), 1, 0)
        ]


def test_a_clock_that_is_set_forward_and_back_goes_on_with_the_quota_of_the_day(tmp_path: Path) -> None:
    quota = {"of": "token", "name": digest("a"), "requests_per_day": 5}
    auth, folder = write_auth(tmp_path / "auth.json", [entry("a")], [quota]), tmp_path / "usage"
    today = utc_day()
    later = today + timedelta(days=60)
    clock = [today]
    options = Options(model_repository=(tmp_path,), auth_file=auth, usage_log=folder)
    ledger = Ledger(options, lambda model: True, lambda: clock[0])
    account = ledger._accounts[digest("a")]

    async def set_the_clock() -> None:
        ledger.start(asyncio.get_running_loop())
        for clock[0], before, adds in ((today, 0, 3), (later, 0, 5), (today, 3, 1), (later, 5, 0), (today, 4, 1)):
            ledger._tick()
            (limited,) = account.quotas
            assert (limited.requests, limited.used_up) == (before, before >= 5)
            use = ledger._use(account, "m")
            assert use is not None
            use.cells[0] += adds
            use.note()
        await ledger.close()

    asyncio.run(set_the_clock())
    kept = {path.stem: decode(path.read_bytes()).records[-1].uses[digest("a"), "m"][0] for path in day_files(folder)}
    assert kept == {str(today): 5, str(later): 5}


def test_a_second_server_is_refused_the_folder_and_a_log_needs_the_auth_file(tmp_path: Path) -> None:
    first = UsageLog(tmp_path / "usage", DAY)
    with pytest.raises(ServingError, match="another server writes to this folder"):
        UsageLog(tmp_path / "usage", DAY)
    first.close()
    UsageLog(tmp_path / "usage", DAY).close()
    with ServerProcess(tmp_path, f"--usage-log={tmp_path / 'usage'}", wait="") as server:
        assert server.process is not None
        assert server.process.wait(60) == 2
        assert "--usage-log needs --auth-file" in server.log


def test_a_torn_record_is_left_out_and_the_next_one_repairs_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"{DAY}.log"
    holders = {digest("a"): Holder("laptop", "ada", ("lab",))}
    whole = encode(Record(1, 1.0, holders, {KEY: TEN}))
    path.write_bytes(whole + encode(Record(2, 2.0, {}, {KEY: TEN})).replace(b"10", b"99") + whole[: len(whole) // 2])
    log = UsageLog(tmp_path, DAY)
    assert "2 of its records are left out" in caplog.text
    assert tuple(log.cells[KEY]) == TEN
    assert log.holders == holders
    log.close()
    lines = decode(path.read_bytes())
    assert (lines.damaged, lines.end) == (0, path.stat().st_size)
    assert (lines.records[-1].uses, lines.records[-1].holders) == ({KEY: TEN}, holders)


def test_the_counters_of_a_day_that_a_killed_server_left_are_logged_for_that_day(tmp_path: Path) -> None:
    log = UsageLog(tmp_path, DAY)
    cells = log.page.cells(KEY)
    cells[0] = 7
    log.close()  # as a kill: nothing was submitted
    UsageLog(tmp_path, date(2026, 3, 2)).close()
    assert decode((tmp_path / f"{DAY}.log").read_bytes()).records[-1].uses[KEY][0] == 7
    assert not list(tmp_path.glob(f"{DAY}.counters"))


def test_a_failed_write_is_said_once_and_the_next_one_has_all_totals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = UsageLog(tmp_path, DAY)
    assert log.submit(DAY, {KEY: TEN}, {}).result()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("serving.usage.usage_log.os.pwrite", full)
        patched.setattr("serving.usage.usage_log.write_atomic", lambda *_, **__: full())
        other = (digest("b"), "m")
        assert [log.submit(DAY, {other: TEN}, {}).result() for _ in range(2)] == [False, False]
    assert caplog.text.count("the usage log cannot be written") == 1
    assert log.submit(DAY, {other: TEN}, {}).result()
    log.close()
    assert set(decode((tmp_path / f"{DAY}.log").read_bytes()).records[-1].uses) == {KEY, other}


def test_a_damaged_or_cut_off_counter_file_gives_no_counts_to_other_tokens(tmp_path: Path) -> None:
    path = tmp_path / f"{DAY}.counters"
    page = CounterPage(path)
    keys = [(digest(name), "m") for name in "abcd"]
    for key in keys:
        page.cells(key)[0] = 7
    content = bytearray(path.read_bytes())
    content[SLOT + KEY_FROM - 8 : SLOT + KEY_FROM] = bytes(8)  # the second slot looks unused
    content[2 * SLOT + KEY_FROM : 2 * SLOT + KEY_FROM + 8] = b"[" * 8  # the third has no key
    path.write_bytes(content[: 4 * SLOT - 100])  # the file was cut off within the fourth
    again = CounterPage(path)
    found = again.restored()
    assert {key: cells[0] for key, cells in found.items()} == {keys[0]: 7, keys[3]: 7}
    new = [again.cells((digest(str(number)), "m")) for number in range(CHUNK_SLOTS)]
    assert [sum(cells) for cells in new] == [0] * CHUNK_SLOTS
    path.write_bytes(b"[" * 3000)
    assert CounterPage(path).restored() == {}
