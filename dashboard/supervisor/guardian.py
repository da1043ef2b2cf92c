"""Ends the process groups of `up` after `up` itself has ended in any way. That closes this process's standard input.

Lines on standard input: "+<group>": a group started; "-<group>": it has ended; "?" is answered with "!" on standard output, so
that `up` knows that the guardian lives. The guardian imports only the standard library: it runs as a script with
`python -I -S`, in its own session, and outlives a SIGKILL of `up`.
"""

import os
import signal
import sys
import time


def read_groups() -> set[int]:
    """Return the groups that still run when the input ends."""
    groups: set[int] = set()
    for line in sys.stdin:
        if line == "?\n":
            answer()
            continue
        sign, group = line[0], int(line[1:])
        (groups.add if sign == "+" else groups.discard)(group)
    return groups


def answer() -> None:
    try:
        os.write(sys.stdout.fileno(), b"!\n")
    except OSError:  # `up` has ended; its last lines are still to be read
        pass


def send(group: int, number: int) -> bool:
    """Send a signal to a group; return False if no process of it is left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline_s = float(sys.argv[1])
    groups = read_groups()
    for group in groups:
        send(group, signal.SIGTERM)
    deadline = time.monotonic() + deadline_s
    while groups and time.monotonic() < deadline:
        groups = {group for group in groups if send(group, 0)}
        time.sleep(0.1)
    for group in groups:
        send(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
