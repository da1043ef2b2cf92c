"""Writes docs/benchmarks.md and its pictures from the JSON files in docs/benchmarks/. The same figures give the same page."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison.record import Results
from benchmarks.report.charts import Bar, Range, bars, ranges
from benchmarks.report.summary import Row, ratio, rows

BESIDE_TRITON, THROUGHPUT, LATENCY = "benchmarks-triton.svg", "benchmarks-throughput.svg", "benchmarks-latency.svg"
AT = "32 clients"  # the load to which TARGETS applies
OPEN = "80% load"
# The peers in Python. TARGETS has the target ratios of Slipway's throughput to theirs, at `AT` and with the same JSON.
PYTHON_PEERS = ("mlserver", "litserve", "bentoml", "ray", "fastapi", "fastapi_workers")
TARGETS = {"torchserve": 3.0} | dict.fromkeys(PYTHON_PEERS, 5.0)
BATCHING_TARGET = 2.0
Table = list[list[str]]

HEAD = """\
# Benchmarks

`make bench-peers` and `make bench-triton` measure and write this page; nobody edits it by hand. The figures of every round are
in [docs/benchmarks](benchmarks/). Compare ratios of one run, not figures of different runs or machines. Two other pages have
figures of [perf_analyzer](perf-analyzer.md), and of the memory for
[loading, many models and large tensors](memory-and-scale.md).
"""

PEERS = """\
# The same model on every server

{date}, commit {commit}, {machine}. Load average before the run: {load_average}.

The model is a multilayer perceptron 512-1024-1024-10 (FP32). Every server runs the same ONNX file with the same version of ONNX
Runtime and one thread. A request is one row. The model alone, in a separate process, takes {alone_1} us for one row,
{alone_16} us a row in batches of 16, and {alone_64} us a row in batches of 64. Before it is measured, each server must answer
with the model's own numbers.

* Closed loop: wrk with one thread for HTTP, h2load for gRPC. Each client has one request in flight.
* Open loop: Poisson arrivals at a share of the throughput that the server reached in the closed loop just before. They use 64
  connections, and up to 512 if these are busy. **Latency counts from the intended send time**, so it includes the wait for a
  free connection.
* The load generator runs on the same machine and takes CPU from the servers. One server runs at a time. Each figure has
  {rounds} of {seconds} s, in which the servers take turns; each round reverses the order. Figures are the medians of the
  rounds, with the lowest and the highest in brackets.
* Server CPU is the user and system time of the whole process tree for each request, with the computation of the model.
* Slipway, Triton and MLServer get JSON of the V2 protocol, the others `{{"features": [...]}}`.

{settings}
"""

HANDLERS = """\
# TorchServe's handlers on TorchServe and on Slipway

{date}, commit {commit}, {machine}. Load average before the run: {load_average}.

TorchServe {version} and Slipway run side by side, started with the same command line and config.properties, and serve the same
archives with one worker each. wrk with one thread and {clients} clients sends requests to `/predictions/...` of each server in
turn: {rounds} of {seconds} s. The {warm_up_s} s before them do not count, because Java first compiles its busiest code. Figures
are the medians of the rounds. A ratio is that of the medians, with the lowest and the highest of a round in brackets. CPU is
the time of the whole process tree for each request.

* `mlp512`: a handler that runs the perceptron below in ONNX Runtime, from 512 numbers as JSON to ten.
* `no-op`: a function that answers with the bytes of the request. `batchSize` is TorchServe's default, 1, unless the row names a
  batch. `maxBatchDelay` is 10 ms.
"""

TRITON = """\
# Compared with Triton, case by case

{date}, commit {commit}, {machine}. Load average before the run: {load_average}.

Slipway and NVIDIA's Triton run side by side with the same model repository, and take turns at each case: {rounds} of
{seconds} s. wrk (HTTP) and h2load (gRPC) send the requests from the same machine, with one thread each. Every model has one
instance and one thread. Figures are the medians of the rounds. A ratio is that of the medians, with the lowest and the highest
of a round in brackets. CPU is the time of the whole process tree for each request.

* `simple`: the sum and the difference of 16 integers, no batching. `identity`: an ONNX identity of 4 KB, no batching.
* `python`: an identity in the Python backend, of 4 KB unless the case names another size. `python_batched` has
  `max_batch_size: 64`.
* Interpreted: Slipway without compiled modules, as after the first `make run`.
* `mlp`: the perceptron below with `dynamic_batching {{ }}`. `mlp_delay` waits 500 us for a batch.
* `bert`: a BERT-like encoder with 2 layers, width 128 and 128 tokens, batched.

![Slipway's throughput as a multiple of Triton's, case by case](images/{picture})

The red mark is the target. {met} of {all} cases reach it.
"""


def write_page(folder: Path) -> Path:
    """Write `folder`/benchmarks.md and pictures in images/ from the JSON files in benchmarks/. Return the path of the page.

    A part that was never measured is left out.
    """
    results, pictures = folder / "benchmarks", folder / "images"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    if (folder / "performance.md").exists():
        parts.append("[Performance](performance.md) explains where the time of a request goes.")
    if (path := results / "triton.json").exists():
        parts += _triton(Results.read(path), pictures)
    if (path := results / "handlers.json").exists():
        parts += _handlers(Results.read(path))
    if (path := results / "peers.json").exists():
        parts += _peers(Results.read(path), pictures)
    page = folder / "benchmarks.md"
    page.write_text("\n".join(part.rstrip() + "\n" for part in parts))
    return page


# -- Slipway and Triton ------------------------------------------------------------------------------------------------
def _triton(results: Results, pictures: Path) -> list[str]:
    about, found = results.about, rows(results)
    drawn: list[Bar] = []
    table: Table = []
    met = 0
    for case, load in dict.fromkeys((case, load) for _, case, load in found):
        theirs, ours = found.get(("triton", case, load)), found.get(("slipway", case, load))
        if theirs is None or ours is None:
            continue
        target = about["targets"][f"{case}, {load}"]
        times = ratio(ours, theirs)
        met += times.value >= target
        label = f"{case}, {load.removesuffix(' clients')}"
        text = f"{times.value:.2f} x"
        drawn.append(Bar(label, times.value, times.low, times.high, text, own=times.value >= target, target=target))
        cells = [case, load.removesuffix(" clients")]
        cells += [f"{row.per_second.value:,.0f} ({row.cpu_us:.0f})" for row in (theirs, ours)]
        cells += [
            f"{theirs.p99.value:.2f} / {ours.p99.value:.2f}",
            f"{times.value:.2f} ({times.low:.2f}-{times.high:.2f})",
        ]
        cells += [f"{target:.1f}", "yes" if times.value >= target else "no"]
        sources = found.get(("interpreted", case, load))
        cells.append(f"{sources.per_second.value:,.0f}; {ratio(sources, theirs).value:.2f}" if sources else "")
        if workers := found.get(("workers", case, load)):
            each = f"{workers.cpu_us:.0f}, core {workers.root_us:.0f}"
            cells.append(f"{workers.per_second.value:,.0f} ({each}); {ratio(workers, theirs).value:.2f}")
        table.append(cells)
    (pictures / BESIDE_TRITON).write_text(bars("Slipway's throughput as a multiple of Triton's", drawn))
    heads = [
        "case",
        "clients",
        "Triton /s (CPU us)",
        "Slipway /s (CPU us)",
        "p99 ms of each",
        "ratio",
        "target",
        "reached",
        "interpreted: /s; ratio",
    ]
    count = about["settings"].get("frontend_workers")
    if count:
        heads.append(f"`--frontend-workers {count}`: /s (CPU us); ratio")
    text = TRITON.format_map({**about, **_settings(about), "picture": BESIDE_TRITON, "met": met, "all": len(table)})
    return [text, markdown(heads, table)]


# -- TorchServe's handlers ---------------------------------------------------------------------------------------------
def _handlers(results: Results) -> list[str]:
    about, found = results.about, rows(results)
    table: Table = []
    for case, load in dict.fromkeys((case, load) for _, case, load in found):
        theirs, ours = found["torchserve", case, load], found["slipway", case, load]
        times, target = ratio(ours, theirs), about["targets"][case]
        cells = [case, *(f"{row.per_second.value:,.0f} ({row.cpu_us:.0f})" for row in (theirs, ours))]
        cells += [" / ".join(f"{row.p50:.2f}" for row in (theirs, ours))]
        cells += [" / ".join(f"{row.p99.value:.2f}" for row in (theirs, ours))]
        cells += [f"{times.value:.1f} x ({times.low:.1f}-{times.high:.1f})", *_aim(times.value, target)]
        table.append(cells)
    heads = [
        "handler",
        "TorchServe /s (CPU us)",
        "Slipway /s (CPU us)",
        "p50 ms of each",
        "p99 ms of each",
        "throughput",
        "target",
        "reached",
    ]
    memory = about["worker_mb"]
    text = f"A worker has {memory['torchserve']:.0f} MB resident in TorchServe, {memory['slipway']:.0f} MB in Slipway."
    settings = {**about["settings"], **_settings(about)}
    return [HANDLERS.format_map({**about, **settings}), markdown(heads, table), text]


# -- every server ------------------------------------------------------------------------------------------------------
def _peers(results: Results, pictures: Path) -> list[str]:
    about, found = results.about, rows(results)
    titles = {name: one["title"] for name, one in about["servers"].items()}
    settings = "\n".join(_setting(one, about["absent"].get(name)) for name, one in about["servers"].items())
    alone = {f"alone_{size}": f"{value:.0f}" for size, value in about["model_alone_us"].items()}
    parts = [PEERS.format_map({**about, **_settings(about), **alone, "settings": settings})]
    parts += _promises(found, titles)
    _draw(found, titles, pictures)
    parts.append(
        f"![Requests a second at {AT}](images/{THROUGHPUT})\n\n![Latency under Poisson arrivals](images/{LATENCY})\n\n"
        f"The dots are p50, p95 and p99 under Poisson arrivals at 80 % of each server's throughput."
    )
    for load in _in_order(found):
        title = f"## Poisson arrivals at {load.removesuffix('% load')} % of capacity" if "%" in load else f"## {load}"
        chosen = {key: row for key, row in found.items() if key[2] == load}
        parts.append(f"{title.replace('## 1 clients', '## 1 client')}\n\n{_loads(chosen, titles)}")
    parts.append(_lesson(about["lesson"]))
    return parts


def _in_order(found: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the loads in order: few clients before many, then Poisson arrivals."""
    loads = {load for _, _, load in found}
    return sorted(loads, key=lambda load: ("%" in load, int(load.split()[0].rstrip("%"))))


def _setting(server: dict[str, str], absent: str | None) -> str:
    text = f"* **{server['title']}**: {server['settings']}"
    text += f" It could not take part here: {absent}" if absent else ""
    return textwrap.fill(text, 128, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _settings(about: dict[str, Any]) -> dict[str, Any]:
    rounds, seconds = about["settings"]["rounds"], about["settings"]["seconds"]
    return {"rounds": f"{rounds} round{'s' if rounds > 1 else ''}", "seconds": seconds}


def _promises(found: dict[tuple[str, str, str], Row], titles: dict[str, str]) -> list[str]:
    """Return the tables with targets: Slipway's JSON compared with each peer's, and batching on with batching off."""
    table: Table = []
    ours, binary = found.get(("slipway", "JSON", AT)), found.get(("slipway", "binary", AT))
    for name, title in titles.items():
        theirs = found.get((name, "JSON", AT))
        if ours is None or theirs is None or name == "slipway":
            continue
        times, target = ratio(ours, theirs), TARGETS.get(name)
        cells = [title, f"{theirs.per_second.value:,.0f}", f"{times.value:.1f} x ({times.low:.1f}-{times.high:.1f})"]
        cells += [f"{theirs.cpu_us / ours.cpu_us:.1f} x", f"{ratio(binary, theirs).value:.1f} x" if binary else ""]
        table.append([*cells, *_aim(times.value, target)])
    heads = [
        "Slipway compared with",
        "other's requests/s",
        "throughput",
        "CPU of a request",
        "with binary tensors",
        "target",
        "reached",
    ]
    title = f"## JSON at {AT}, compared with each server"
    text = (
        "Throughput is Slipway's as a multiple of the other server's; CPU is the other server's as a multiple of Slipway's.\n"
        "All requests are JSON, except in the column *with binary tensors*, where Slipway gets binary tensors."
    )
    parts = [f"{title}\n\n{text}\n\n{markdown(heads, table)}"] if table else []
    batching: Table = []
    for load in _in_order(found):
        on, off = found.get(("slipway", "binary", load)), found.get(("unbatched", "binary", load))
        if on is None or off is None:
            continue
        times = ratio(on, off)
        cells = [load, *(f"{row.per_second.value:,.0f} / {row.p99.value:.2f} ms" for row in (on, off))]
        late = on.p99.value / off.p99.value
        reached = times.value >= BATCHING_TARGET and late < 1
        batching.append([*cells, f"{times.value:.1f} x", f"{late:.2f} x", "yes" if reached else "no"])
    heads = ["load", "batching on: /s, p99", "off: /s, p99", "throughput", "p99", "2 x at a lower p99"]
    if batching:
        parts.append(f"## Slipway's dynamic batching on and off, HTTP binary\n\n{markdown(heads, batching)}")
    return parts


def _aim(value: float, target: float | None) -> list[str]:
    return ["", ""] if target is None else [f"{target:g} x", "yes" if value >= target else "no"]


def _name(titles: dict[str, str], server: str, case: str) -> str:
    return f"{titles[server]}, {case}"


def _draw(found: dict[tuple[str, str, str], Row], titles: dict[str, str], pictures: Path) -> None:
    at = [(server, case, row) for (server, case, load), row in found.items() if load == AT]
    at.sort(key=lambda one: -one[2].per_second.value)
    drawn = []
    for server, case, row in at:
        rate = row.per_second
        own = server in ("slipway", "unbatched")
        drawn.append(Bar(_name(titles, server, case), rate.value, rate.low, rate.high, f"{rate.value:,.0f}/s", own))
    (pictures / THROUGHPUT).write_text(bars(f"Requests a second at {AT}", drawn))
    late = [(server, case, row) for (server, case, load), row in found.items() if load == OPEN and row.p50 == row.p50]
    late.sort(key=lambda one: one[2].p99.value)
    lines = [
        Range(f"{_name(titles, server, case)}", row.p50, row.p95, row.p99.value, own=server == "slipway")
        for server, case, row in late
    ]
    (pictures / LATENCY).write_text(
        ranges("Latency from the intended moment, at 80 % of each server's capacity", lines)
    )


def _loads(chosen: dict[tuple[str, str, str], Row], titles: dict[str, str]) -> str:
    opened = any(row.offered for row in chosen.values())
    table: Table = []
    for (server, case, _), row in sorted(chosen.items(), key=lambda item: -item[1].per_second.value):
        rate = row.per_second
        cells = [_name(titles, server, case)] + ([f"{row.offered:,.0f}"] if opened else [])
        cells += [f"{rate.value:,.0f} ({rate.low:,.0f}-{rate.high:,.0f})", f"{row.p50:.2f}", f"{row.p95:.2f}"]
        cells += [f"{row.p99.value:.2f} ({row.p99.low:.2f}-{row.p99.high:.2f})", f"{row.cpu_us:.0f}"]
        table.append([*cells, str(row.failures or "")])
    heads = [
        "server",
        *(["arrivals/s"] if opened else []),
        "requests/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "CPU us",
        "failed",
    ]
    return markdown(heads, table)


LESSON = """\
## The lesson's own script

`benchmarks/comparison/framework_benchmark.py`, unchanged, with FastAPI (one process), TorchServe and, in place of Triton,
Slipway. The script opens a new connection for each of 1,000 requests, 10 at a time, from one Python process. This process takes
more CPU than Slipway, so the script measures its client as much as the servers.

```
{output}
```
"""


def _lesson(lesson: dict[str, str]) -> str:
    if "output" in lesson:
        return LESSON.format(output=lesson["output"].strip())
    reason = lesson.get("reason", "it runs only if all servers run")
    return f"{LESSON.partition(', unchanged')[0]} did not run: {reason}"


def markdown(heads: Sequence[str], table: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose other columns are figures."""
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    return "\n".join([*lines, *map(_line, table)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
