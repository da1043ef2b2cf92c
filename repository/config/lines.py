"""Differences between two texts by lines, in time proportional to the length of the texts.

The search for the fewest changes follows Myers ("An O(ND) Difference Algorithm and Its Variations", 1986), with a limit on the
number of steps. If two texts are too different for that limit, all lines between their common beginning and their common end
count as one change.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_STEPS = 20_000  # the limit for the smallest text; each line adds _STEPS_OF_A_LINE
_STEPS_OF_A_LINE = 16


class Hunk(NamedTuple):
    """Lines `start` to `end` of the old text become lines `from_` to `to` of the new one."""

    start: int
    end: int
    from_: int
    to: int


def hunks(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """Return the changes that turn one text into the other, in the order of their lines."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    if not before and not after:
        return []
    changed = _path(before, after) if before and after else None
    whole = [Hunk(0, len(before), 0, len(after))]
    return [Hunk(*(number + first for number in hunk)) for hunk in _joined(whole if changed is None else changed)]


def _path(old: Sequence[str], new: Sequence[str]) -> list[Hunk] | None:
    """Return the single lines that are removed or added, in order, or None if finding them takes too many steps."""
    steps = _STEPS + _STEPS_OF_A_LINE * (len(old) + len(new))
    rounds: list[array[int]] = []  # rounds[n]: the furthest line of the old text on each diagonal, after n changes
    while steps > 0:
        changes = len(rounds)
        furthest = array("i", bytes(array("i").itemsize * (changes + 1)))
        for index in range(changes + 1):
            began = x = _before(rounds[-1], index)[0] if rounds else 0
            y = x - (2 * index - changes)
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[index] = x
            steps -= 1 + x - began
            if x >= len(old) and y >= len(new):
                return _traced(rounds, index, len(old))
        rounds.append(furthest)
    return None


def _before(furthest: "array[int]", index: int) -> tuple[int, bool]:
    """Return the start of a diagonal after one more change, and whether that change adds a line."""
    comes = index == 0 or (index < len(furthest) and furthest[index - 1] < furthest[index])
    return (furthest[index], True) if comes else (furthest[index - 1] + 1, False)


def _traced(rounds: "list[array[int]]", index: int, x: int) -> list[Hunk]:
    """Return the changes on the path to a diagonal. x: the line of the old text at which the path ends."""
    found = []
    for changes in range(len(rounds), 0, -1):
        x, comes = _before(rounds[changes - 1], index)
        y = x - (2 * index - changes)
        found.append(Hunk(x, x, y - 1, y) if comes else Hunk(x - 1, x, y, y))
        index -= not comes
    return found[::-1]


def _joined(single: Sequence[Hunk]) -> list[Hunk]:
    """Return the changes; changes of neighbouring lines are joined."""
    found: list[Hunk] = []
    for hunk in single:
        if found and hunk.start <= found[-1].end and hunk.from_ <= found[-1].to:
            found[-1] = found[-1]._replace(end=hunk.end, to=hunk.to)
        else:
            found.append(hunk)
    return found


def unified(old: str, new: str, *, old_name: str = "before", new_name: str = "after", context: int = 3) -> str:
    """Return a unified diff; "" when the texts are the same."""
    before, after = old.splitlines(), new.splitlines()
    lines: list[str] = []
    for group in _grouped(hunks(before, after), context):
        lines += _format_hunks(group, before, after, context)
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *lines]) if lines else ""


def _grouped(changes: Sequence[Hunk], context: int) -> list[list[Hunk]]:
    """Return the changes in groups whose contexts touch."""
    groups: list[list[Hunk]] = []
    for hunk in changes:
        if groups and hunk.start - groups[-1][-1].end <= 2 * context:
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    return groups


def _format_hunks(group: Sequence[Hunk], before: Sequence[str], after: Sequence[str], context: int) -> Iterator[str]:
    first, last = group[0], group[-1]
    above, below = min(context, first.start), min(context, len(before) - last.end)
    old, new = _range(first.start - above, last.end + below), _range(first.from_ - above, last.to + below)
    yield f"@@ -{old} +{new} @@"
    at = first.start - above
    for hunk in group:
        yield from (f" {line}" for line in before[at : hunk.start])
        yield from (f"-{line}" for line in before[hunk.start : hunk.end])
        yield from (f"+{line}" for line in after[hunk.from_ : hunk.to])
        at = hunk.end
    yield from (f" {line}" for line in before[at : at + below])


def _range(start: int, end: int) -> str:
    """Return a hunk's range in the format, which counts from 1; an empty range names the line before it."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
