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
    otherwise a serving version takes the new value. control: the parameter's input on the configuration page, or None. apart:
    whether separate code shows inputs for it, on that page or on pages of its own. A parameter with neither is edited as a row
    of key and value.
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
        return 'expected slipway.isolation "process" as well: only a separate process can be ended without the server'
    return ""


def _isolation_problem(value: Json, config: ModelConfig) -> str:
    return "" if value in ("none", "process") else f'expected "none" or "process", not {json.dumps(value)}'


_DECLARED = (
    OwnParameter(
        ISOLATION,
        _isolation_problem,
        '`"none"`, `"process"`',
        '`"process"` runs the model\'s instances in separate processes: a crash or a memory leak affects only these.',
        built_in=True,
        control=Control(
            "Run in separate processes",
            "A crash ends only that process. Python models always run this way.",
            on="process",
        ),
    ),
    OwnParameter(
        EXECUTION_TIMEOUT,
        _execution_timeout_problem,
        "seconds, such as `30`",
        'How long a batch may run in a child process (Python models, `slipway.isolation: "process"`), and how long a '
        "decoupled model may take from one response to the next. After that time the process is replaced, and its "
        "requests fail. No limit by default.",
        built_in=True,
        control=Control("Longest execution", "seconds; then its process is replaced; empty = no limit"),
    ),
    OwnParameter(
        text_generation.PARAMETER,
        text_generation.problem,
        r'`{"prompt_input": "text_input", "output": "text_output", "begin": "", "message": "{role}: {content}\n", '
        '"reply": "assistant: "}`',
        "The model generates text and answers [OpenAI's routes](server.md#text-generators). Every key is optional; "
        "the defaults are shown. The prompt of a chat is `begin`, one `message` for each message, and `reply`. "
        '`message` may be an object with a template for each role. `"messages_input": "<input>"` names an input for the '
        "messages as JSON, for a model that builds its own prompt.",
    ),
    OwnParameter(
        inline_execution.PARAMETER,
        _bounded(0, 10_000, "microseconds"),
        "microseconds from `0` to `10000`; `100`",
        "Executions shorter than this run on the server's event loop, because handing them to a thread and back "
        "would take as long. The server measures executions and decides for each doubling of the batch size. The "
        "limit is five times as high for a request that is alone in the server. It is divided by the number of "
        "instances. Executions take at most half of the loop's time. `0` runs every execution on its instance's "
        "thread. Only for ONNX Runtime and PyTorch on the CPU. The metric `slipway_inline_execution_count` counts "
        "executions on the loop.",
        control=Control("Inline below", "microseconds; shorter executions need no thread; empty = 100"),
    ),
    OwnParameter(
        release.RELEASE,
        release.release_problem,
        "a number from `1`, such as `7`",
        "The number of the release to which the configuration belongs. The dashboard writes it. The server reports the "
        "release of each version in index, feed, statistics and metrics.",
        apart=True,
    ),
    OwnParameter(
        release.ALIASES,
        release.aliases_problem,
        '`{"champion": 3, "default": 3}`',
        "Names for versions, valid wherever a version number is: in paths, gRPC's `model_version`, and `model` of "
        "OpenAI's routes (`name@champion`). A name has 1 to 64 of a-z, 0-9, `_`, `.` and `-`, and begins with a "
        "letter. A request that names no version goes to the version with the alias `default`, or else to the highest "
        "version. A sequence stays on the version on which it began, even if the alias is reassigned. A load is "
        "refused if an alias names a version that the policy does not serve. Aliases and release take effect without "
        "a reload. No `slipway.pbtxt` may set them.",
        apart=True,
    ),
    OwnParameter(
        traffic.PARAMETER,
        traffic.traffic_problem,
        '`{"rollout": "r-1", "candidate": 4, "weight": 5}`',
        "How requests that name no version are split between the stable version and a candidate; see "
        "[traffic](#traffic).",
    ),
    OwnParameter(
        version_settings.PARAMETER,
        version_settings.problem,
        '`{"2": {"max_batch_size": 8, "instance_group": [{"count": 2}]}}`',
        "Settings of single versions: for each version number, parts of the configuration in JSON. They override the "
        "model's settings and those of the version's `slipway.pbtxt`, and may set the same fields as that file. The "
        "dashboard writes them (*Versions*, *Settings*), so that each change is a release.",
        apart=True,
    ),
    OwnParameter(
        step_retries.PARAMETER,
        step_retries.problem,
        '`{"<model of a step>": {"retries": 2, "timeout_ms": 5000}}`',
        "For an ensemble: how often a failed step is retried with the same inputs, and the timeout of each attempt. "
        "Without it a step has one attempt and no timeout. A decoupled step that has sent a response is not retried. "
        "TorchServe's workflows set it from `retry-attempts` and `timeout-ms`.",
    ),
    OwnParameter(
        variable_batch.PARAMETER,
        variable_batch.problem,
        "`false`, `true`",
        "`true` treats a first dimension of 1 in the inputs and outputs of an ONNX model as variable. A model that was "
        "exported with an example of one row then batches, without a change of its file. The inspection tests with "
        "several rows whether the model supports this.",
        built_in=True,
    ),
    OwnParameter(
        class_names.PARAMETER,
        class_names.problem,
        '`{"probabilities": ["setosa", "virginica"]}`',
        "The class names of an output, by index, if it has no `label_filename`. If this parameter is missing, the server "
        "fills it in from an ONNX file with class names (ZipMap).",
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
