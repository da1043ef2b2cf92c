"""Runs a confined program from a process of its own, which a test starts under another account or kills.

The arguments of `program.run` come as a line of JSON on standard input, with the means that the machine is taken to lack;
lines and outcome go out in the same way.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dashboard.confinement.bounds import Limits
from dashboard.confinement.program import run
from dashboard.confinement.promises import Protections, protections


def main(order: dict[str, Any]) -> None:
    found = Protections(replace(protections().means, **order["lacks"]))
    ended = run(
        order["command"],
        folder=Path(order["folder"]),
        reads=[Path(path) for path in order["reads"]],
        limits=Limits(**order["limits"]),
        environment=order["environment"],
        check=lambda: None,
        on_line=lambda line: print(json.dumps({"line": line}), flush=True),
        given_up=tuple(found.missing),
        found=found,
    )
    print(json.dumps({"status": ended.status, "bound": ended.bound, "sentence": ended.sentence}))


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
