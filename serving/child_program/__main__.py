"""The program of a child process, run by path: `python .../child_program/__main__.py CHANNEL LINK HEARTBEAT PARENT NAME`.

CHANNEL and LINK are descriptors of connected Unix sockets, and HEARTBEAT is the descriptor of an eventfd. PARENT is the process
id of the server. NAME is the name of the instance, for the list of processes.

The process asks the kernel to kill it when its parent ends, so that no child outlives a killed server.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
HEARTBEAT_S = 1.0


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends. Exit immediately if `parent` has already ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def beat(counter: int) -> None:
    """Send heartbeats to the server through an eventfd, even while the model executes. Never returns."""
    while True:
        try:
            os.eventfd_write(counter, 1)
        except BlockingIOError:  # the server was suspended for so long that the counter is full
            pass
        time.sleep(HEARTBEAT_S)


def main() -> None:
    channel, link, heartbeat, parent = map(int, sys.argv[1:5])
    die_with(parent)
    os.set_inheritable(heartbeat, False)
    threading.Thread(target=beat, args=(heartbeat,), name="heartbeat", daemon=True).start()
    faulthandler.enable()
    ends = [socket.socket(fileno=descriptor) for descriptor in (channel, link)]
    for end in ends:
        end.set_inheritable(False)
    # The project's root replaces the script's folder. `loop` removes the root for a model that imports its own modules.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from serving.backends.channel.packet_channel import PacketChannel
    from serving.child_program import loop

    sys.argv[1:] = []
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    loop.serve(PacketChannel(ends[0]), ends[1])


if __name__ == "__main__":
    main()
