"""The server of this process, for the functions and classes of pb_utils, which have no argument for it in Triton's API.

The stub that runs the model sets it once, before it imports the model's code.
"""

from dataclasses import dataclass

from serving.backends.channel.shared_memory import SharedMemoryPool
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.server_link import ServerLink


@dataclass(slots=True)
class ModelProcess:
    """model_dir: the folder of the version whose model.py runs here. link: None without a server.

    outputs: the shared memory for its outputs; None before it serves."""

    model_dir: str = ""
    link: ServerLink | None = None
    outputs: SharedMemoryPool | None = None


PROCESS = ModelProcess()


def server() -> ServerLink:
    """Return the link of this process; TritonModelException without one."""
    if PROCESS.link is None:
        raise TritonModelException("the server can be asked only by a model that it is serving")
    return PROCESS.link
