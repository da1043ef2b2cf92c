"""Completing a configuration in a child process: what the backends share whose models only a process of their own can read."""

from pathlib import Path
from typing import Any

from serving.backends.channel.channel import close_all
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.child.process import ChildDied, ChildProcess
from serving.backends.environments.interpreter import Interpreter
from serving.core.errors import internal, invalid

COMPLETE_TIMEOUT_S = 120.0


def complete_in_child(
    name: str, python: Interpreter, servant: str, model_file: Path, config: Any, place: str, work: str
) -> Message:
    """The answer of a child that is started for this alone. INTERNAL where it dies, INVALID_ARG where it takes too long, in
    sentences that tell the `place` ("in auto_complete_config") and the `work` ("auto_complete_config")."""
    child = ChildProcess(f"{name} (configuration)", python)
    message: Message = {
        "op": "complete_config",
        "stub": servant,
        "folder": str(model_file.parent),
        "model_file": str(model_file),
        "config": config,
    }
    try:
        answer, received = child.exchange(message, timeout_s=COMPLETE_TIMEOUT_S)
        close_all(received)
        return answer
    except ChildDied as died:
        raise internal(f"{died} {place}: {child.last_words()}".removesuffix(": ")) from None
    except TimeoutError:
        raise invalid(f"{work} took longer than {COMPLETE_TIMEOUT_S:g} s") from None
    finally:
        child.end(grace_s=0)
