"""A comparison keeps what it measured, gives every server its turn, and writes a page that says what is and is not reached."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.comparison import peers, triton
from benchmarks.comparison.measure import order
from benchmarks.comparison.record import Key, Measurement, Results, Unfinished
from benchmarks.comparison.subjects import all_servers
from benchmarks.machine import commit
from benchmarks.report.page import markdown, write_page
from benchmarks.report.summary import Figure, ratio, rows
from dashboard.loads.outcome import Outcome


def measured(number: int, server: str, case: str, load: str, per_second: float, offered: float = 0.0) -> Measurement:
    latency_ms = 1000 / per_second
    outcome = Outcome(int(per_second), 1.0, 0, latency_ms, 2 * latency_ms, 3 * latency_ms)
    return Measurement.of(Key(number, server, case, load), outcome, cpu_s=0.5, offered=offered)


def results(measurements: list[Measurement], **about: object) -> Results:
    known = {"date": "2026-01-01", "commit": "0123456789ab", "machine": "a machine", "load_average": 0.1}
    return Results(known | about, {one.key: one for one in measurements})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of git with one commit."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "server.py").write_text("pass\n")
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "the first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_the_commit_is_named_and_what_differs_from_it_is_said(checkout: Path) -> None:
    name = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True).stdout[:12]
    (checkout / "docs" / "benchmarks.md").write_text("what a benchmark wrote\n")
    assert commit(checkout) == name
    (checkout / "new.py").touch()
    assert commit(checkout) == f"{name} with changes that are not committed"


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown (no git checkout)"


def test_every_round_has_all_servers_in_the_reverse_order_of_the_round_before() -> None:
    assert [order("abc", number) for number in (1, 2, 3)] == [list("abc"), list("cba"), list("abc")]


def test_a_run_that_broke_off_goes_on_and_one_with_other_settings_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = measured(1, "slipway", "JSON", "8 clients", 1000.0)
    Unfinished(path, {"rounds": 3}).add(one)
    again = Unfinished(path, {"rounds": 3})
    assert one.key in again
    assert again.measurements == {one.key: one}
    assert Unfinished(path, {"rounds": 2}).measurements == {}


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = results([measured(1, "triton", "JSON", "50% load", 123.4, offered=125.0)], settings={"rounds": 1})
    written.write(tmp_path / "peers.json")
    assert Results.read(tmp_path / "peers.json") == written


def test_rounds_become_a_median_with_its_spread_and_ratios_compare_within_a_round() -> None:
    rates = {"slipway": [100.0, 300.0, 200.0], "triton": [100.0, 100.0, 50.0]}
    found = rows(
        results([measured(n + 1, name, "c", "l", rate) for name, each in rates.items() for n, rate in enumerate(each)])
    )
    ours, theirs = found["slipway", "c", "l"], found["triton", "c", "l"]
    assert ours.per_second == Figure(200.0, 100.0, 300.0)
    assert ratio(ours, theirs) == Figure(2.0, 1.0, 4.0)


def test_a_table_has_an_empty_cell_where_there_is_nothing() -> None:
    assert markdown(["a", "b", "c"], [["x", "", "1"]]) == "| a | b | c |\n| --- | ---: | ---: |\n| x | | 1 |\n"


def test_the_page_says_which_promises_are_kept_and_who_could_not_take_part(tmp_path: Path) -> None:
    servers = {one.name: {"title": one.title, "settings": one.settings} for one in all_servers()}
    rates = {"slipway": 6000.0, "torchserve": 1500.0, "mlserver": 2000.0}
    loads = [measured(1, name, "JSON", "32 clients", rate) for name, rate in rates.items()]
    loads += [measured(1, name, "JSON", "80% load", rate * 0.8, rate * 0.8) for name, rate in rates.items()]
    loads += [
        measured(1, "slipway", "binary", "32 clients", 9000.0),
        measured(1, "unbatched", "binary", "32 clients", 3e3),
    ]
    results(
        loads,
        settings={"rounds": 1, "seconds": 2},
        servers=servers,
        absent={"ray": "no wheel for this machine"},
        model_alone_us={"1": 70.0, "16": 15.0, "64": 13.0},
        lesson={"reason": "port 8080 is taken"},
    ).write(tmp_path / "benchmarks" / "peers.json")
    cases = [
        measured(1, name, "simple, JSON", "8 clients", rate)
        for name, rate in (("triton", 100.0), ("slipway", 90.0), ("interpreted", 80.0))
    ]
    about = {"settings": {"rounds": 1, "seconds": 3}, "targets": {"simple, JSON, 8 clients": 1.0}}
    results(cases, **about).write(tmp_path / "benchmarks" / "triton.json")
    handlers = [
        measured(1, name, "no-op, 1 KB", "32 clients", rate) for name, rate in (("torchserve", 1e3), ("slipway", 5e3))
    ]
    results(
        handlers,
        settings={"rounds": 1, "seconds": 3, "warm_up_s": 10, "clients": 32},
        version="0.12.0",
        targets={"no-op, 1 KB": 4.0},
        worker_mb={"torchserve": 210.4, "slipway": 190.0},
    ).write(tmp_path / "benchmarks" / "handlers.json")
    page = write_page(tmp_path).read_text()
    assert page.count("2026-01-01, commit 0123456789ab, a machine") == 3
    assert (
        "| simple, JSON | 8 | 100 (5000) | 90 (5556) | 30.00 / 33.33 | 0.90 (0.90-0.90) | 1.0 | no | 80; 0.80 |" in page
    )
    assert "| TorchServe 0.12.0 | 1,500 | 4.0 x (4.0-4.0) | 4.0 x | 6.0 x | 3 x | yes |" in page
    assert "| MLServer 1.7.1 | 2,000 | 3.0 x (3.0-3.0) | 3.0 x | 4.5 x | 5 x | no |" in page
    assert "| 32 clients | 9,000 / 0.33 ms | 3,000 / 1.00 ms | 3.0 x | 0.33 x | yes |" in page
    assert (
        "| no-op, 1 KB | 1,000 (500) | 5,000 (100) | 1.00 / 0.20 | 3.00 / 0.60 | 5.0 x (5.0-5.0) | 4 x | yes |" in page
    )
    assert "A worker has 210 MB resident in TorchServe, 190 MB in Slipway." in page
    assert "It could not take part here: no wheel for this machine" in page
    assert "did not run: port 8080 is taken" in page
    for name in ("triton", "throughput", "latency"):
        ElementTree.parse(tmp_path / "images" / f"benchmarks-{name}.svg")


def test_a_full_run_measures_every_case_that_was_promised() -> None:
    assert {(case.model, case.encoding) for case in triton.CASES} >= {
        ("simple", "JSON"),
        ("python", "gRPC"),
        ("bert", "gRPC"),
    }
    assert len({(case.name, case.load) for case in triton.CASES}) == len(triton.CASES) == 37
    assert {case.loads for case in triton.CASES if case.interpreted} == {"simple", "identity"}
    assert peers.Settings().clients == (1, 8, 32, 128)
    assert peers.SHARES == (0.5, 0.8)
