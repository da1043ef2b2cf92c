"""The writing of captured requests to one file, for `count_program`: the counted instructions are those of ROWS requests."""

import sys

import numpy as np

from repository.core.capture_files import Copied, Layout, Row, encoded_rows

ROWS = 1000  # 200 captured requests a second in a file of 5 s


def rows() -> list[Row]:
    """Return requests as of the paths "binary" and others: two inputs and two outputs of 16 integers."""
    chance = np.random.default_rng(0)
    found: list[Row] = []
    tensors = {name: np.zeros((1, 16), np.int32) for name in ("0", "1")}
    layout = Layout(tensors, tensors)
    for number in range(ROWS):
        copies: list[Copied] = [chance.integers(0, 100, 16, np.int32).tobytes() for _ in range(4)]
        found.append((number, "", 1.7e9 + number / 200, 1, "", None, 500 + number % 100, layout, copies, layout.size))
    return found


def main() -> None:
    given = rows()
    encoded_rows(given)
    print("ready", flush=True)
    sys.stdin.readline()
    encoded_rows(given)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
