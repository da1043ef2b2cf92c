"""The table of repository agents, which check a model's files before it loads, in the order that its configuration gives.

A new agent is one module with the two functions of `Agent` and one line in AGENTS. Triton's agents are shared libraries with
another interface. Slipway's `checksum` has the name and the parameters of Triton's agent.
Source: Triton, docs/customization_guide/repository_agents.md.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.errors import InvalidConfig, Problem, RepositoryError

# Name in a configuration -> module, imported when a model first needs it.
AGENTS = {
    "checksum": "repository.agents.checksum",
}


class Agent(Protocol):
    def problems(self, parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the key of each wrong parameter, and a sentence about it."""

    def approve(self, model_dir: Path, parameters: Mapping[str, str]) -> None:
        """Raise RepositoryError if a model with these files must not load. `parameters` are valid. The call may take long."""


def problems(config: ModelConfig) -> Iterator[Problem]:
    """Yield the problems of the agents in a configuration, without reading the model's files."""
    for index, named in enumerate(config.model_repository_agents.agents):
        field = f"model_repository_agents.agents[{index}]"
        if named.name not in AGENTS:
            yield Problem(f"{field}.name", f"there is no repository agent '{named.name}'; there is {', '.join(AGENTS)}")
            continue
        for key, sentence in _agent(named.name).problems(named.parameters):
            yield Problem(f'{field}.parameters["{key}"]', sentence)


def approve(config: ModelConfig, model_dir: Path) -> None:
    """Ask each agent in turn to approve the model. Raises RepositoryError with the reason of the first agent that refuses."""
    wrong = tuple(problems(config))
    if wrong:
        raise InvalidConfig("; ".join(map(str, wrong)), field=wrong[0].field, problems=wrong)
    for named in config.model_repository_agents.agents:
        try:
            _agent(named.name).approve(model_dir, named.parameters)
        except RepositoryError as error:
            raise RepositoryError(f"repository agent '{named.name}' refuses the model: {error.message}") from error


def _agent(name: str) -> Agent:
    return cast(Agent, importlib.import_module(AGENTS[name]))
