"""Writes ensembles into a repository, also invalid ones that a server must refuse."""

from pathlib import Path
from typing import Any

from tests.support import model_factory

X = '{name: "X" data_type: TYPE_FP32 dims: [1]}'
Y = '{name: "Y" data_type: TYPE_FP32 dims: [1]}'


def ensemble(
    repository: Path, steps: str, name: str = "pipeline", inputs: str = X, outputs: str = Y, max_batch_size: int = 8
) -> Path:
    folder = Path(repository, name)
    (folder / "1").mkdir(parents=True)
    return model_factory.write_config(
        folder,
        f"""name: "{name}" platform: "ensemble" max_batch_size: {max_batch_size} input [{inputs}] output [{outputs}]
        ensemble_scheduling {{ {steps} }}""",
    )


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    """Return the text of a step. inputs, outputs: name of the model's tensor -> name of the ensemble's tensor."""
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def chain(repository: Path) -> str:
    """Write the models of the steps Y = 3 * (2 * X). Return the text of the steps, the later step first."""
    model_factory.onnx_scale(repository, "double", 2.0)
    model_factory.onnx_scale(repository, "triple", 3.0)
    return step("triple", {"INPUT0": "m"}, {"OUTPUT0": "Y"}) + step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"})


# The mistake -> (steps with the models double, triple and sum; other changes of the ensemble; a pattern for the reason)
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a step that does not exist": (
        step("absent", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
        {},
        "failed to load 'absent'",
    ),
    "an input of a step that is not mapped": (
        step("sum", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
        {},
        "step 'sum' does not map input 'INPUT1'",
    ),
    "a mapping to an output that is not there": (
        step("double", {"INPUT0": "X"}, {"NONE": "Y"}),
        {},
        "maps 'NONE', which is not an output",
    ),
    "a datatype that does not fit": (
        step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
        {"inputs": '{name: "X" data_type: TYPE_INT32 dims: [1]}'},
        "is INT32 from the ensemble's input, but step 'double' expects FP32",
    ),
    "a shape that does not fit": (
        step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
        {"inputs": '{name: "X" data_type: TYPE_FP32 dims: [7]}'},
        r"has shape \[-1, 7\] from the ensemble's input",
    ),
    "a step with a smaller maximum batch": (
        step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
        {"max_batch_size": 64},
        "its maximum batch size is 64, but step 'double' allows 8",
    ),
    "steps that wait for each other": (
        step("sum", {"INPUT0": "X", "INPUT1": "b"}, {"OUTPUT0": "a"})
        + step("double", {"INPUT0": "a"}, {"OUTPUT0": "b"})
        + step("triple", {"INPUT0": "a"}, {"OUTPUT0": "Y"}),
        {},
        "reads tensor 'b', but only a step that waits for this one writes it",
    ),
    "an ensemble that contains itself": (
        step("wrong", {"X": "X"}, {"Y": "Y"}),
        {},
        "contains itself",
    ),
}


def wrong_pipeline(repository: Path, case: str, name: str = "wrong") -> str:
    """Write the ensemble of a case, and its models. Return the pattern for the reason of the refusal."""
    steps, changes, reason = WRONG[case]
    model_factory.onnx_scale(repository, "double", 2.0)
    model_factory.onnx_scale(repository, "triple", 3.0)
    model_factory.onnx_add_sub(repository, "sum", dims=[1])
    ensemble(repository, steps.replace('"wrong"', f'"{name}"'), name, **changes)
    return reason
