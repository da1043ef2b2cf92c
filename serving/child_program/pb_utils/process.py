"""Keeps this process's link to the server, because functions of pb_utils have no argument for it in Triton's API.

The stub that runs the model sets the link once, before it imports the model's code.
"""

from dataclasses import dataclass

from serving.backends.channel.shared_memory import SharedMemoryPool
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.server_link import ServerLink


@dataclass(slots=True)
class ModelProcess:
    """model_dir: the folder of the version whose model.py runs in this process. link: the link to the server, or None outside a
    server. outputs: the shared memory for the model's outputs, or None before the model serves."""

    model_dir: str = ""
    link: ServerLink | None = None
    outputs: SharedMemoryPool | None = None


PROCESS = ModelProcess()


def server() -> ServerLink:
    """Return the link of this process. Raises TritonModelException if there is no link."""
    if PROCESS.link is None:
        raise TritonModelException("the server can be asked only by a model that it is serving")
    return PROCESS.link
