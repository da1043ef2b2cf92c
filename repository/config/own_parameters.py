"""The table of Slipway's own parameters, `slipway.<name>` with a value in JSON.

The validation, the reload rule, the form of the dashboard and docs/configuration.md read `OWN_PARAMETERS`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import (
    class_names,
    inline_execution,
    release,
    residency,
    step_retries,
    text_generation,
    traffic,
    variable_batch,
    version_settings,
)
from repository.config.backends import KINDS
from repository.config.model_config import backend_of, get_parameter
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json

EXECUTION_TIMEOUT = "execution_timeout_s"
ISOLATION = "isolation"

Problem = Callable[[Json, ModelConfig], str]  # returns the mistake in a value, as a sentence; "" if there is none


@dataclass(frozen=True, slots=True)
class Control:
    """The input of a parameter on the configuration page: a field for a number, or a switch that sets the value `on`."""

    label: str
    hint: str
    on: Json = None


@dataclass(frozen=True, slots=True)
class OwnParameter:
    """A parameter.

    values, means: the row of the parameter in docs/configuration.md. built_in: whether a new value rebuilds a version;
    otherwise a serving version takes the new value. control: the input of the parameter on the configuration page; None means
    a row with key and value. apart: whether the parameter has other controls, on that page or on pages of its own.
    """

    name: str
    problem: Problem
    values: str
    means: str
    built_in: bool = False
    control: Control | None = None
    apart: bool = False


def _bounded(least: float, most: float, unit: str) -> Problem:
    """Return the rule for a number within bounds."""

    def problem(value: Json, config: ModelConfig) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            return f"expected a number of {unit} from {least} to {most}, not {value!r}"
        return ""

    return problem


def _execution_timeout_problem(value: Json, config: ModelConfig) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return f"expected a number of seconds over 0, not {value!r}"
    try:
        kind = KINDS.get(backend_of(config))
        apart = (kind and kind.own_process) or get_parameter(config, ISOLATION) == "process"
    except InvalidConfig:  # the rule of that parameter reports it
        return ""
    if not apart:
        return 'expected slipway.isolation "process" beside it: only a process of its own can be ended by itself'
    return ""


def _isolation_problem(value: Json, config: ModelConfig) -> str:
    return "" if value in ("none", "process") else f'expected "none" or "process", not {json.dumps(value)}'


_DECLARED = (
    OwnParameter(
        ISOLATION,
        _isolation_problem,
        '`"none"`, `"process"`',
        '`"process"` runs the model\'s instances in processes of their own: a crash or a leak ends with them.',
        built_in=True,
        control=Control(
            "Run in processes of its own",
            "What crashes there takes nothing else with it. Python models always do.",
            on="process",
        ),
    ),
    OwnParameter(
        EXECUTION_TIMEOUT,
        _execution_timeout_problem,
        "seconds, such as `30`",
        'How long a batch may take in a model\'s own process (Python models, `slipway.isolation: "process"`), and '
        "a decoupled model from one response to the next. Then the process is replaced and its requests fail. No "
        "bound by default.",
        built_in=True,
        control=Control("Longest execution", "seconds, then its process is replaced; empty = no limit"),
    ),
    OwnParameter(
        text_generation.PARAMETER,
        text_generation.problem,
        r'`{"prompt_input": "text_input", "output": "text_output", "begin": "", "message": "{role}: {content}\n", '
        '"reply": "assistant: "}`',
        "The model generates text and answers [OpenAI's routes](server.md#text-generators). Every key may be "
        "left out; these are the defaults. A chat becomes a prompt of `begin`, one `message` for each message "
        'and `reply`; `message` may be an object with a template for each role. `"messages_input": "<input>"` '
        "gives the messages as JSON to a model that makes its own prompt.",
    ),
    OwnParameter(
        inline_execution.PARAMETER,
        _bounded(0, 10_000, "microseconds"),
        "microseconds from `0` to `10000`; `100`",
        "Executions shorter than this run on the server's event loop itself: handing them to a thread and back "
        "would take as long. Measured, and decided for each doubling of the batch size; five times as much for a "
        "request that is alone in the server; divided by the number of instances. At most half of the loop's "
        "time goes there. `0` gives every execution to its instance's thread. ONNX Runtime and PyTorch on the "
        "CPU only; `slipway_inline_execution_count` of the metrics tells how many did.",
        control=Control("Inline below", "microseconds; shorter executions need no thread; empty = 100"),
    ),
    OwnParameter(
        release.RELEASE,
        release.release_problem,
        "a number from `1`, such as `7`",
        "The release that the configuration belongs to. The dashboard writes it; the server tells in index, "
        "feed, statistics and metrics which release each version serves.",
        apart=True,
    ),
    OwnParameter(
        release.ALIASES,
        release.aliases_problem,
        '`{"champion": 3, "default": 3}`',
        "Names of versions, which stand wherever a version's number may: in paths, gRPC's `model_version`, "
        "`model` of OpenAI's routes (`name@champion`). A name has 1 to 64 of a-z, 0-9, `_`, `.` and `-`, the "
        "first a letter. A request that names no version goes to `default`, without it to the highest. A "
        "sequence goes on with the version on which it began, where a name moves meanwhile. A load is refused "
        "where a name means a version that the policy does not serve. Aliases and release are taken in place, "
        "without a reload, and no `slipway.pbtxt` may set them.",
        apart=True,
    ),
    OwnParameter(
        traffic.PARAMETER,
        traffic.traffic_problem,
        '`{"rollout": "r-1", "candidate": 4, "weight": 5}`',
        "How requests that name no version are shared with a candidate; see [traffic](#traffic).",
    ),
    OwnParameter(
        version_settings.PARAMETER,
        version_settings.problem,
        '`{"2": {"max_batch_size": 8, "instance_group": [{"count": 2}]}}`',
        "What single versions are served with in place of what the configuration says: parts of it in JSON, by "
        "version. The dashboard writes it (*Versions*, *Settings*), so that each change is a release. It goes "
        "before a version's `slipway.pbtxt`, and may not set what that may not.",
        apart=True,
    ),
    OwnParameter(
        step_retries.PARAMETER,
        step_retries.problem,
        '`{"<model of a step>": {"retries": 2, "timeout_ms": 5000}}`',
        "Of an ensemble: how often a step that fails is tried again, alone and with the inputs that it had, and "
        "how long each try may take. Without it a step is tried once, for as long as it takes. A decoupled step "
        "that has sent a response is not tried again. TorchServe's workflows set it from `retry-attempts` and "
        "`timeout-ms`.",
    ),
    OwnParameter(
        variable_batch.PARAMETER,
        variable_batch.problem,
        "`false`, `true`",
        "`true` reads a first dimension of 1 in the inputs and outputs of an ONNX model as a variable one, so "
        "that a model that was exported with an example of one row batches; the file stays as it is. The "
        "inspection tries with several rows whether a model bears it.",
        built_in=True,
    ),
    OwnParameter(
        class_names.PARAMETER,
        class_names.problem,
        '`{"probabilities": ["setosa", "virginica"]}`',
        "The names of an output's classes, by index, where no `label_filename` gives them. The server writes "
        "here what an ONNX file says of classes (ZipMap), unless it is given.",
    ),
    OwnParameter(
        residency.PARAMETER,
        residency.problem,
        '`{"mode": "on_demand", "idle_seconds": 300}`',
        "When the model is in memory; see [residency](#residency).",
        apart=True,
    ),
)
OWN_PARAMETERS = {one.name: one for one in _DECLARED}
