"""Where Slipway does not answer as TorchServe 0.12 does, and why: `docs/torchserve.md` says the same to people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """`status` and `ours`: Slipway's answer, and what stands in its body."""

    why: str
    ours: str
    status: int = 200


DIFFERENCES: dict[str, Difference] = {
    "scaling to fewer than none": Difference("theirs fails inside and loses the worker", "min_worker", 400),
}
