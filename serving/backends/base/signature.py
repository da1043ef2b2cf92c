"""Completes a configuration from the signature of the model's file (repository/config/signature.py)."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature, complete
from serving.core.errors import invalid


def complete_config(config: ModelConfig, signature: Signature) -> None:
    """Fill the missing fields of `config`. Raises INVALID_ARG if a given field contradicts the file."""
    problems = complete(config, signature)
    if problems:
        raise invalid(problems[0].message)
