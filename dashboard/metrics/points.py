"""The messages of /ws/live/: the figures of a second of one server, or of several servers together."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypedDict

import orjson

from dashboard.metrics.feed import Key, Tick
from dashboard.metrics.samples import ProcessGauges
from dashboard.metrics.usage import Figures, Usage, combine_side_by_side, figures, instance_key, server_key

_NUMBERS = itertools.count(1)
_DRAWN = ("rps", "p50", "p99", "errors")  # what charts draw of each instance and server: there may be hundreds


class PointBody(TypedDict, total=False):
    """The fields of a message of type "point", except type, server and time."""

    models: dict[str, Figures]
    process: ProcessGauges
    memory: dict[
        str, int
    ]  # "<model>/<version>" -> bytes; about all models, of the versions that hold more or less than before
    whole: bool  # whether `memory` has every version, as in the first message about all models
    floors: list[str]  # the keys of `memory` whose bytes are a lower bound
    total: Figures  # only in a message about all models
    versions: dict[str, Figures]  # only in a message about one model, by version number, with feed.NO_VERSION
    instances: dict[
        str, dict[str, object]
    ]  # only in a message about one model, by usage.instance_key: figures of _DRAWN
    states: dict[str, str]
    servers: dict[str, dict[str, object]]  # only in a sum about one model, by usage.server_key: figures of _DRAWN
    missing: list[str]  # only in a sum: the servers that are not in it, because they gave no point


class Message:
    """A message to WebSockets; its text is made once for all WebSockets of the same model. server: "" for a sum."""

    server = ""
    number = 0  # of a point, like no other one

    def follow(self, before: "Message | None") -> None:
        """Note the message before, so that the text may tell only what has changed."""

    def text(self, model: str = "", number: int = 0) -> str:
        """Return the message as JSON: about all models, or about one model with its versions. number: of the message that the
        reader had last, after which only changes of memory are told."""
        raise NotImplementedError


class Point(Message):
    """The figures of one tick, of a server or of several together. states: of a server. missing: as in PointBody; None for one
    server. parts: the points of the servers in a sum."""

    def __init__(
        self,
        server: str,
        tick: Tick,
        states: dict[Key, str],
        missing: list[str] | None = None,
        parts: "Sequence[Point]" = (),
    ) -> None:
        self.server = server
        self.tick = tick
        self.states = states
        self.parts = parts
        self._head = {"type": "point", "server": server, "at": tick.time}
        if missing is not None:
            self._head["missing"] = missing
        self._versions: dict[str, dict[int, Usage]] = defaultdict(dict)
        for (name, version), usage in tick.models.items():
            self._versions[name][version] = usage
        self._texts: dict[tuple[str, bool], str] = {}
        self.number = next(_NUMBERS)
        self._before = 0  # the number of the point before, 0 for none to which the next applies
        self._changed: set[Key] = set()  # the versions that hold more or less than then

    def follow(self, before: Message | None) -> None:
        if self._before or not isinstance(before, Point):
            return
        mine, others = self.tick, before.tick
        if mine.memory is not others.memory or mine.floors is not others.floors:
            if not mine.memory.keys() >= others.memory.keys():
                return
            found = {key for key, held in mine.memory.items() if others.memory.get(key) != held}
            self._changed = found | (mine.floors ^ others.floors)
        self._before = before.number

    def text(self, model: str = "", number: int = 0) -> str:
        changes = not model and number == self._before > 0
        if (model, changes) not in self._texts:
            self._texts[model, changes] = orjson.dumps({**self._head, **self._body(model, changes)}).decode()
        return self._texts[model, changes]

    def _body(self, model: str, changes: bool) -> PointBody:
        """Return the figures of one model, or of all models that have requests, finished or pending."""
        names = [model] if model else list(self._versions)
        body: PointBody = {
            "models": {name: self._figures(list(self._versions[name].values())) for name in names},
            "process": self.tick.process,
        }
        if model:
            body["versions"] = {str(one): self._figures([usage]) for one, usage in self._versions[model].items()}
            body["instances"] = {
                instance_key(version, label): _drawn(self._figures([usage]))
                for (name, version), usages in self.tick.instances.items()
                if name == model
                for label, usage in usages.items()
            }
            body["servers"] = {server_key(one.server): _drawn(one.figures_of(model)) for one in self.parts}
            body["states"] = self._states_of(model)
        else:
            body["total"] = self._figures(list(self.tick.models.values()))
            body["whole"] = not changes
        memory = self.tick.memory
        if changes:
            held = {key: memory[key] for key in self._changed}
        else:
            held = {key: size for key, size in memory.items() if model in ("", key[0])}
        body["memory"] = {f"{name}/{version}": size for (name, version), size in held.items()}
        body["floors"] = [f"{name}/{version}" for name, version in self.tick.floors if (name, version) in held]
        return body

    def _states_of(self, model: str) -> dict[str, str]:
        """Return the state of each version: in a sum, the one that it has on most servers."""
        found: dict[str, list[str]] = defaultdict(list)
        for point in self.parts or (self,):
            for (name, version), state in point.states.items():
                if name == model:
                    found[str(version)].append(state)
        return {version: max(words, key=words.count) for version, words in found.items()}

    def figures_of(self, model: str) -> Figures:
        """Return the figures of all versions of a model together."""
        return self._figures(list(self._versions[model].values()))

    def _figures(self, usages: list[Usage]) -> Figures:
        return figures(combine_side_by_side(usages), self.tick.seconds)


class Lost(Message):
    """Says that the feed is interrupted. Points follow when the connection is restored."""

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        body = {"type": "lost", "server": server, "message": f"{reason[:1].upper()}{reason[1:]}."}
        self._json = orjson.dumps(body).decode()

    def text(self, model: str = "", number: int = 0) -> str:
        return self._json


def _drawn(all_figures: Figures) -> dict[str, object]:
    return {name: all_figures[name] for name in _DRAWN}  # type: ignore[literal-required]


def together(points: Sequence[Point], missing: list[str], before: Message | None = None) -> Point:
    """Return the sum of one point of each of several servers. before: the sum of the second before.

    What waits, and memory, add up too.
    """
    usages: dict[Key, list[Usage]] = defaultdict(list)
    instances: dict[Key, dict[str, Usage]] = defaultdict(dict)
    for point in points:
        for key, usage in point.tick.models.items():
            usages[key].append(usage)
        for key, several in point.tick.instances.items():
            instances[key] |= {f"{label} {server_key(point.server)}": usage for label, usage in several.items()}
    ticks = [point.tick for point in points]
    memory, floors = _memory_together(points, before)
    tick = Tick(
        time=max(one.time for one in ticks),
        seconds=sum(one.seconds for one in ticks) / len(ticks),
        models={key: combine_side_by_side(several) for key, several in usages.items()},
        process=_processes(one.process for one in ticks),
        memory=memory,
        instances=dict(instances),
        floors=floors,
    )
    return Point("", tick, {}, missing, points)


def _memory_together(points: Sequence[Point], before: Message | None) -> tuple[dict[Key, int], frozenset[Key]]:
    """Return what the versions hold on all servers. With many models that is much work, so it is done when it has changed."""
    held = _held(points)
    if isinstance(before, Point) and held == _held(before.parts):
        return before.tick.memory, before.tick.floors
    total: Counter[Key] = Counter()
    for memory, _ in held:
        total.update(memory)
    return dict(total), frozenset().union(*(floors for _, floors in held))


def _held(points: Sequence[Point]) -> list[tuple[dict[Key, int], frozenset[Key]]]:
    return [(one.tick.memory, one.tick.floors) for one in points]


def _processes(several: Iterable[ProcessGauges]) -> ProcessGauges:
    total: ProcessGauges = {"rss": 0, "cpu": 0.0, "threads": 0.0, "gpus": []}
    for one in several:
        total["rss"] += one["rss"]
        total["cpu"] += one["cpu"]
        total["threads"] += one["threads"]
        total["gpus"] = [*total["gpus"], *one["gpus"]]
    return total
