"""Measures every setting of a small grid for five models, and replays searches over the recorded figures.

    python -m benchmarks.tuning_grids record FOLDER [--models digits mlp] [--seconds 300]
    python -m benchmarks.tuning_grids replay FOLDER [--optuna]

`record` writes FOLDER/<model>.json: for each setting the requests a second and the p99 of some windows, at 16 clients in a
closed loop. It continues a grid that is not complete. `replay` compares the search of dashboard/tuning with a random one, and
with Optuna's TPE sampler if that package is installed, each on the recorded windows. tests/dashboard/tuning has the grids.
"""

import argparse
import contextlib
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from dashboard.loads.program import Plan, windows
from dashboard.loads.requests import Request
from dashboard.tuning.parameters import BY_NAME
from dashboard.tuning.search import Axis, Score, Setting, Values, search_step
from repository.config.document import Document
from tests.support.model_factory import onnx_mlp, python_model
from tests.support.serving_process import ROOT, ServerProcess

CLIENTS = 16
WARMUP_S, WINDOW_S, WINDOWS = 0.25, 0.35, 3
SHARE = 0.2  # of the settings that a search may try
STARTS = 25  # settings from which a search is replayed: the present one, and random ones
_FIXED_COST = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.004 + 0.0003 * len(requests))
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.as_numpy())]) for one in inputs]
"""
_FIXED_CONFIG = """name: "python" backend: "python" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [1] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }
"""
_DELAYS = ("off", "0", "500", "2000")
# Model -> (axis -> values with the present one, present values). An axis is a model and a parameter.
GRIDS: dict[str, tuple[dict[str, tuple[str, ...]], dict[str, str]]] = {
    "digits": (
        {
            "digits:queue_delay": _DELAYS,
            "digits:instances": ("1", "2", "4"),
            "digits:threads": ("0", "1", "2"),
            "digits:inline_below_us": ("0", "100"),
        },
        {"digits:queue_delay": "500", "digits:instances": "1", "digits:threads": "1", "digits:inline_below_us": "100"},
    ),
    "digits_torch": (
        {
            "digits_torch:queue_delay": _DELAYS,
            "digits_torch:instances": ("1", "2", "4"),
            "digits_torch:threads": ("0", "1"),
            "digits_torch:preferred_batch_size": ("none", "8"),
        },
        {
            "digits_torch:queue_delay": "500",
            "digits_torch:instances": "1",
            "digits_torch:threads": "0",
            "digits_torch:preferred_batch_size": "none",
        },
    ),
    "mlp": (
        {
            "mlp:queue_delay": _DELAYS,
            "mlp:instances": ("1", "2", "4"),
            "mlp:threads": ("0", "1", "2"),
            "mlp:max_batch_size": ("8", "16"),
        },
        {"mlp:queue_delay": "off", "mlp:instances": "2", "mlp:threads": "0", "mlp:max_batch_size": "16"},
    ),
    "python": (
        {
            "python:queue_delay": _DELAYS,
            "python:instances": ("1", "2", "4"),
            "python:max_batch_size": ("4", "8", "16"),
            "python:preferred_batch_size": ("none", "4"),
        },
        {
            "python:queue_delay": "off",
            "python:instances": "1",
            "python:max_batch_size": "8",
            "python:preferred_batch_size": "none",
        },
    ),
    "text_pipeline": (
        {
            "text_tokenizer:queue_delay": ("off", "0", "2000"),
            "text_tokenizer:instances": ("1", "2"),
            "text_classifier:queue_delay": ("off", "0", "2000"),
            "text_classifier:instances": ("1", "2"),
            "text_classifier:threads": ("0", "1"),
        },
        {
            "text_tokenizer:queue_delay": "0",
            "text_tokenizer:instances": "1",
            "text_classifier:queue_delay": "0",
            "text_classifier:instances": "1",
            "text_classifier:threads": "0",
        },
    ),
}


# -- record ------------------------------------------------------------------------------------------------------------
def build(folder: Path) -> None:
    """Write the repository with the five models and the steps of the ensemble."""
    for name in ("digits", "digits_torch", "text_pipeline", "text_tokenizer", "text_classifier"):
        shutil.copytree(ROOT / "examples" / "models" / name, folder / name)
    onnx_mlp(folder, max_batch_size=16)
    python_model(folder, "python", _FIXED_COST, _FIXED_CONFIG)


def request_of(config: Any) -> Request:
    """Return a JSON request with one row for a configuration."""
    inputs = []
    for one in config.input:
        text = (
            one.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[one.data_type].name == "TYPE_STRING"
        )
        shape = [1, *(16 if dim < 0 else dim for dim in one.dims)]
        count = 1
        for dim in shape:
            count *= dim
        data: list[object] = ["where is my parcel"] if text else [index % 16 / 16 for index in range(count)]
        inputs.append({"name": one.name, "shape": shape, "datatype": "BYTES" if text else "FP32", "data": data})
    body = json.dumps({"inputs": inputs}).encode()
    return Request(f"/v2/models/{config.name}/infer", body, {"Content-Type": "application/json"})


def load(server: ServerProcess, document: Document) -> None:
    config = document.message
    if config.name == "digits":
        document = document.edited(lambda it: it.version_policy.specific.versions.append(2))
    text = json_format.MessageToJson(document.message, preserving_proto_field_name=True, indent=None)
    status, body = server.post(f"/v2/repository/models/{config.name}/load", {"parameters": {"config": text}})
    if status != 200:
        raise SystemExit(f"{config.name} was not loaded: {body}")


def with_values(repository: Path, setting: Setting) -> dict[str, Document]:
    """Return the configurations of a setting by model."""
    found: dict[str, Document] = {}
    for axis, value in setting.items():
        model, _, name = axis.partition(":")
        document = found.get(model) or Document.read((repository / model / "config.pbtxt").read_text())

        def write(config: Any, name: str = name, value: str = value) -> None:
            BY_NAME[name].write(config, value)

        found[model] = document.edited(write)
    return found


def record(folder: Path, models: Sequence[str], seconds: float) -> None:
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as made:
        repository = Path(made)
        build(repository)
        with ServerProcess(repository, "--model-control-mode=explicit", wait="live") as server:
            for model in models:
                path = folder / f"{model}.json"
                rows = json.loads(path.read_text())["rows"] if path.exists() else []
                axes, present = GRIDS[model]
                done = {json.dumps(row["setting"], sort_keys=True) for row in rows}
                settings = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
                for setting in settings:
                    if json.dumps(setting, sort_keys=True) not in done and time.monotonic() < until:
                        rows.append({"setting": setting, "windows": measure(server, repository, model, setting)})
                        path.write_text(json.dumps({"present": present, "axes": axes, "rows": rows}) + "\n")
                print(f"{model}: {len(rows)} of {len(settings)}", flush=True)


def measure(server: ServerProcess, repository: Path, model: str, setting: Setting) -> list[list[float]]:
    """Return (requests a second, p99 in ms) of each window."""
    changed = with_values(repository, setting)
    for document in changed.values():
        load(server, document)
    own = Document.read((repository / model / "config.pbtxt").read_text())
    if model not in changed:
        load(server, own)
    plan = Plan(server.http, [request_of(own.message)], [CLIENTS], False, WARMUP_S, WINDOW_S, WINDOWS, WINDOWS)
    found = [window.outcome for window in windows(plan) if window.number]
    if any(one.failures for one in found):
        raise SystemExit(f"{model} failed: {found[0].reasons}")
    return [[round(one.per_second, 1), round(one.p99_ms, 3)] for one in found]


# -- replay ------------------------------------------------------------------------------------------------------------
Table = Mapping[Values, float]


def table_of(path: Path) -> tuple[list[Axis], dict[str, str], Table]:
    """Return the axes, the present setting, and the mean throughput of each setting."""
    grid = json.loads(path.read_text())
    axes = [Axis(name, values) for name, values in grid["axes"].items()]
    rates = {
        tuple(row["setting"][axis.name] for axis in axes): statistics.fmean(rate for rate, _ in row["windows"])
        for row in grid["rows"]
    }
    return axes, grid["present"], rates


def descent(axes: list[Axis], present: Setting, seen: Table, most: int, seed: int) -> tuple[Values, int]:
    """Return the setting that the product's search chooses with at most `most` trials, and the number of trials."""
    tried: dict[Values, Score] = {}
    while (step := search_step(axes, present, tried, most)).next is not None:
        key = _key(axes, step.next)
        tried[key] = Score(True, seen[key])
    return _key(axes, step.best), len(tried)


def at_random(axes: list[Axis], present: Setting, seen: Table, most: int, seed: int) -> tuple[Values, int]:
    keys = [*random.Random(seed).sample(sorted(seen), most - 1), _key(axes, present)]
    return max(keys, key=lambda key: seen[key]), most


def tpe(axes: list[Axis], present: Setting, seen: Table, most: int, seed: int) -> tuple[Values, int]:
    """Optuna's TPE from the present setting. A setting that is proposed again is no trial."""
    import optuna  # type: ignore[import-not-found]  # an environment of its own has it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=5, multivariate=True)
    )
    study.enqueue_trial(dict(present))
    tried: set[Values] = set()
    for _ in range(most * 20):
        if len(tried) >= most:
            break
        trial = study.ask()
        key = tuple(trial.suggest_categorical(axis.name, list(axis.values)) for axis in axes)
        tried.add(key)
        study.tell(trial, seen[key])
    return max(tried, key=lambda key: seen[key]), len(tried)


def replay(folder: Path, *, with_optuna: bool) -> None:
    searches: dict[str, Callable[..., tuple[Values, int]]] = {"descent": descent, "random": at_random}
    if with_optuna:
        searches["tpe"] = tpe
    for path in sorted(folder.glob("*.json")):
        axes, present, rates = table_of(path)
        best, most = max(rates.values()), int(len(rates) * SHARE)
        keys, drawn = sorted(rates), random.Random(0)
        starts = [present, *(dict(zip(present, drawn.choice(keys), strict=True)) for _ in range(STARTS - 1))]
        print(f"{path.stem}: {len(rates)} settings, {most} trials, present {rates[_key(axes, present)] / best:.3f}")
        for name, search in searches.items():
            shares = [rates[search(axes, start, rates, most, seed)[0]] / best for seed, start in enumerate(starts)]
            reached = sum(one >= 0.95 for one in shares) / STARTS
            mean = statistics.fmean(shares)
            print(f"  {name:8} {shares[0]:.3f} from the present, {mean:.3f} from any setting, 95 % in {reached:.0%}")


def _key(axes: Sequence[Axis], setting: Setting) -> Values:
    return tuple(setting[axis.name] for axis in axes)


def main() -> int:
    parser = argparse.ArgumentParser(description="Records grids of configurations, and replays searches over them.")
    parser.add_argument("act", choices=("record", "replay"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--optuna", action="store_true")
    given = parser.parse_args()
    if given.act == "record":
        given.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(KeyboardInterrupt):
            record(given.folder, given.models, given.seconds)
    else:
        replay(given.folder, with_optuna=given.optuna)
    return 0


if __name__ == "__main__":
    sys.exit(main())
