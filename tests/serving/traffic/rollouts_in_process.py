"""Models with a rollout, for tests: versions that answer with numbers of their own, and the texts of policies."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from serving.server.inference_server import InferenceServer
from tests.serving.in_process import response
from tests.support import model_factory

ONE = {"INPUT0": np.array([[1.0]], np.float32)}
BOTH = "version_policy { all {} }"


def parameter(name: str, value: object) -> str:
    """A `slipway.*` parameter as config.pbtxt has it."""
    return f'parameters {{ key: "slipway.{name}" value {{ string_value: {json.dumps(json.dumps(value))} }} }}\n'


def policy(weight: float, candidate: int = 2, **fields: Any) -> str:
    """Text with version 1 as the stable one, and a policy."""
    value = {"rollout": "r-1", "candidate": candidate, "weight": weight, **fields}
    return parameter("aliases", {"default": 1, "champion": 1}) + parameter("traffic", value)


def scale(repository: Path, text: str = "", more: str = "") -> None:
    """A model `scale` whose version n multiplies by n; its configuration ends with `text`."""
    for version in (1, 2):
        model_factory.onnx_scale(repository, factor=float(version), version=version, extra=f"{BOTH}\n{more}{text}")


async def reload(server: InferenceServer, repository: Path, text: str, more: str = "") -> None:
    """Take a configuration that ends with `text`, and nothing else new."""
    config = repository / "scale/config.pbtxt"
    config.write_text(config.read_text().partition(BOTH)[0] + f"{BOTH}\n{more}{text}")
    await server.load_model("scale")


async def count_answers(server: InferenceServer, count: int = 1, model: str = "scale", **fields: Any) -> Counter[int]:
    """How many of so many requests each version has answered, by what it says and by what it computes."""
    found: Counter[int] = Counter()
    for _ in range(count):
        answer = await response(server, model, ONE, **fields)
        assert answer.outputs["OUTPUT0"].item() == answer.model_version
        found[answer.model_version] += 1
    return found
