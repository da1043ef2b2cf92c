"""`make bench-fleet`: measures what many servers cost one `watch`, and how soon a change reaches all of them.

python -m benchmarks.fleet [--servers 8 50 200] [--models 26] [--busy 3] [--seconds 30] [--statements] [--ready]

CPU is CPU time, so that other programs on the machine count little. A change is a new release of one model. Its time is from
the commit until the last server has loaded it, by the servers' own clocks.

`python -m benchmarks.fleet costs` measures the rest (costs.py).
"""

import argparse
import subprocess
import sys
import time

from benchmarks.fleet import costs
from benchmarks.fleet.house import House

CHANGE_S = 10.0  # the span in which the cost of a change is counted
ODD = 5  # the number of servers that hang, that refuse, and that come and go


def main() -> None:
    if sys.argv[1:2] == ["costs"]:
        costs.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[8, 50, 200])
    parser.add_argument("--models", type=int, default=26)
    parser.add_argument("--busy", type=int, default=3, help="models with requests on each server")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--statements", action="store_true", help="print the most frequent statements at rest")
    parser.add_argument(
        "--ready", action="store_true", help="the servers serve all models at the start, for many models"
    )
    given = parser.parse_args()
    if len(given.servers) == 1:
        measure(given.servers[0], given)
        return
    for (
        servers
    ) in given.servers:  # each in a process of its own, because Django keeps the connections to its first database
        command = [sys.executable, "-m", "benchmarks.fleet", *sys.argv[1:], "--servers", str(servers)]
        subprocess.run(command, check=True)


def measure(servers: int, given: argparse.Namespace) -> None:
    with House(servers, given.models, given.busy, given.ready) as house:
        began = time.monotonic()
        house.settled()
        print(f"\n{servers} servers, {given.models} models, {given.busy} of them busy")
        print(f"all models on all servers after {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(12)  # the feed's first events and the first spans of 10 s
        house.forget_statements()
        _tell("at rest", house.cost(lambda: time.sleep(given.seconds)))
        if given.statements:
            for calls, text in house.statements():
                print(f"    {calls / given.seconds:8.1f}/s  {' '.join(text.split())}")
        _change(house, "a change", "model-0000", house.ports)
        if servers >= 4 * ODD:
            odd = {mode: house.ports[n * ODD : (n + 1) * ODD] for n, mode in enumerate(("hang", "refuse", "flap"))}
            for mode, ports in odd.items():
                house.behave(mode, ports)
            time.sleep(10)
            _change(house, f"a change while {ODD} hang, {ODD} refuse, {ODD} flap", "model-0001", house.ports[3 * ODD :])
            house.behave("well", house.ports[: 3 * ODD])
        print(f"watch: {house.resources()}", flush=True)


def _change(house: House, what: str, name: str, ports: list[int]) -> None:
    took: list[float] = []

    def work() -> None:
        began = time.monotonic()
        release, at = house.publish(name)
        took.extend(sorted(one - at for one in house.arrived(name, release, ports).values()))
        time.sleep(max(0.0, CHANGE_S - time.monotonic() + began))

    cost = house.cost(work)
    _tell(what, cost)
    print(
        f"    reached half of {len(took)} servers after {took[len(took) // 2]:.1f} s, the last after {took[-1]:.1f} s",
        flush=True,
    )


def _tell(what: str, cost: dict[str, float]) -> None:
    cores = ", ".join(f"{name} {cost[name]:.2f}" for name in ("watch", "postgres", "stand_ins"))
    print(
        f"{what}: cores: {cores}; {cost['statements']:.0f} statements, {cost['samples']:.0f} samples and "
        f"{cost['bytes'] / 1000:.0f} KB of them a second",
        flush=True,
    )


if __name__ == "__main__":
    main()
