"""The one server of this process, for the functions and classes of pb_utils that Triton gives no argument to say it by.

The stub that runs the model says it, once, before the model's code is imported.
"""

from dataclasses import dataclass

from serving.backends.channel.shared_memory import SharedMemoryPool
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.server_link import ServerLink


@dataclass(slots=True)
class ModelProcess:
    """model_dir: the folder of the version whose model.py runs here. link: None where no server can be asked.

    outputs: the shared memory of what it answers; None before it serves."""

    model_dir: str = ""
    link: ServerLink | None = None
    outputs: SharedMemoryPool | None = None


PROCESS = ModelProcess()


def server() -> ServerLink:
    """Return the link of this process; TritonModelException where there is none."""
    if PROCESS.link is None:
        raise TritonModelException("the server can be asked only by a model that it is serving")
    return PROCESS.link
