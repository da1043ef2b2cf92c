"""--host-policy: the cores that a model instance runs on. Source: Triton, docs/user_guide/optimization.md (Host Policy).

The setting numa-node binds only cores: Linux allocates memory on the node of the thread that first writes to it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from serving.cli.option_values import Cores, HostPolicySetting, core_list
from serving.core.errors import invalid

_NODES = Path("/sys/devices/system/node")


def host_policies(settings: Iterable[HostPolicySetting]) -> dict[str, Cores]:
    """Return the cores of each policy: the cores that all its settings name. Raises INVALID_ARG if this process may use none of
    them."""
    policies: dict[str, Cores] = {}
    for policy, setting, value in settings:
        cores = _of_node(int(value)) if setting == "numa-node" else core_list(value)
        policies[policy] = policies.get(policy, cores) & cores
    usable = os.sched_getaffinity(0)
    for policy, cores in policies.items():
        if not cores & usable:
            raise invalid(f"--host-policy: policy '{policy}' has no core that this process may use")
    return policies


def bind_thread(cores: Cores | None) -> None:
    """Let the calling thread, and the threads and processes that it starts, run on these cores only."""
    if cores:
        os.sched_setaffinity(0, cores & os.sched_getaffinity(0))


def _of_node(node: int) -> Cores:
    try:
        return core_list((_NODES / f"node{node}" / "cpulist").read_text())
    except (OSError, ValueError):
        raise invalid(f"--host-policy: this machine has no NUMA node {node}") from None
