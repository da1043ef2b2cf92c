"""Completing a configuration from what a model's file says of its inputs and outputs (repository/config/signature.py)."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature, complete
from serving.core.errors import invalid


def complete_config(config: ModelConfig, signature: Signature) -> None:
    """Fill what is missing in `config`, in place; INVALID_ARG where what is given contradicts the file."""
    problems = complete(config, signature)
    if problems:
        raise invalid(problems[0].message)
