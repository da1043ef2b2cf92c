"""Completes a configuration in a child process, for backends that can read their models only in a separate process."""

from pathlib import Path

from serving.backends.channel.messages import CompleteConfig, Received
from serving.backends.child.process import ChildDied, ChildProcess
from serving.backends.environments.interpreter import Interpreter
from serving.core.errors import internal, invalid

COMPLETE_TIMEOUT_S = 120.0


def complete_in_child(
    name: str, python: Interpreter, stub: str, model_file: Path, config: str, place: str, work: str
) -> Received:
    """Start a child for this question only, and return its answer: `Completed` or `Failed`.

    place, work: the action, for messages ("while it read the SavedModel", "reading the SavedModel"). Raises INTERNAL if the
    child dies, and INVALID_ARG if the action takes longer than COMPLETE_TIMEOUT_S.
    """
    child = ChildProcess(f"{name} (configuration)", python)
    message: CompleteConfig = {
        "op": "complete_config",
        "stub": stub,
        "folder": str(model_file.parent),
        "model_file": str(model_file),
        "config": config,
    }
    try:
        return child.exchange(message, timeout_s=COMPLETE_TIMEOUT_S)
    except ChildDied as died:
        raise internal(f"{died} {place}: {child.last_words()}".removesuffix(": ")) from None
    except TimeoutError:
        raise invalid(f"{work} took longer than {COMPLETE_TIMEOUT_S:g} s") from None
    finally:
        child.end(grace_s=0)
