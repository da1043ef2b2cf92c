"""A configuration as one object: the text of a config.pbtxt, and all that is asked of it.

It is made at the edges alone (disk, form, REST, upload, the row of a release) and handed on from there; nobody changes one. An
edit returns another document, whose text keeps of the old one what need not change.

The number of the release in a text (`slipway.release`), by which a server says which release it serves, is written by the
dashboard, and is no part of the text to a person: `stamped` writes it, `stamp_of` reads it, and a document is without it.

A text with mistakes is a document, too: it serves nothing and names nothing, and `message` raises what is wrong with it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import edit, model_config, validation, version_policy
from repository.config.file_check import Misfit, ModelFile, misfits
from repository.config.meaning import Meaning, meaning
from repository.config.merge import merged_fields, merged_lines
from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.config.release import (
    ALIASES,
    DEFAULT_ALIAS,
    RELEASE,
    aliases_problem,
    release_of,
    set_aliases,
)
from repository.config.reload_rule import Effect, effect
from repository.config.text import Places
from repository.config.traffic import PARAMETER as TRAFFIC
from repository.config.traffic import policy_of, set_traffic, traffic_problem
from repository.core.errors import InvalidConfig, Problem
from repository.core.json_types import JsonObject

# The same few texts are asked for again and again: by a form, its job, the release, the next step of a rollout.
KEPT = 64
KEPT_CHARACTERS = 1 << 15  # of one text; a larger one is read anew

_STAMP = SLIPWAY_PREFIX + RELEASE
_LINE = f'parameters {{ key: "{_STAMP}" value {{ string_value: "%d" }} }}\n'
_WRITTEN = re.compile(
    rf'^parameters \{{ key: "{re.escape(_STAMP)}" value \{{ string_value: "\d+" \}} \}}\n?', re.MULTILINE
)


def default_version(versions: Sequence[int], aliases: Mapping[str, int]) -> int:
    """Return the version that answers where a request names none; 0 without versions."""
    return aliases.get(DEFAULT_ALIAS, max(versions, default=0))


class Served(NamedTuple):
    """What a configuration serves of some versions.

    answers: the version that answers where a request names none and no policy shares the requests; 0 where nothing is served.
    traffic: per cent of the requests without a version by the version, or the address of another server, that answers them; {}
    where one answers all.
    """

    versions: list[int]
    answers: int
    traffic: dict[str, float]


@dataclass(frozen=True)
class Document:
    """text: as a person wrote it, without the number of its release. Made by `read`."""

    text: str

    @staticmethod
    def read(text: str) -> "Document":
        """Return the document of a text, whatever release it is stamped with."""
        plain = _WRITTEN.sub("", text)
        found = kept(plain) if len(plain) <= KEPT_CHARACTERS else Document(plain)
        if _STAMP in plain and not found.mistake and _STAMP in found.message.parameters:  # in a form that is not ours
            return found.edited(lambda config: config.parameters.pop(_STAMP))
        return found

    def __bool__(self) -> bool:
        return bool(self.text)

    # -- what it says ------------------------------------------------------------------------------------------------
    @cached_property
    def message(self) -> ModelConfig:
        """What the text means, which nobody may change; InvalidConfig, with line and column, for one with mistakes."""
        if isinstance(self._parsed, InvalidConfig):
            raise self._parsed.with_traceback(None)
        return self._parsed

    @cached_property
    def mistake(self) -> InvalidConfig | None:
        """Why the text is no configuration; None where it is one."""
        return self._parsed if isinstance(self._parsed, InvalidConfig) else None

    @cached_property
    def _parsed(self) -> ModelConfig | InvalidConfig:
        try:
            if len(self.text.encode()) > model_config.MAX_CONFIG_BYTES:
                return InvalidConfig("the text is larger than a configuration may be")
            return model_config.parse(self.text)
        except UnicodeEncodeError:
            return InvalidConfig("the text is not UTF-8")
        except InvalidConfig as error:
            return error

    @cached_property
    def places(self) -> Places:
        """Where its fields stand in the text."""
        return Places(self.text)

    @cached_property
    def aliases(self) -> dict[str, int]:
        """The names of versions."""
        try:
            names = get_parameter(self.message, ALIASES, {})
        except InvalidConfig:
            return {}
        return {} if aliases_problem(names, self.message) else cast(dict[str, int], names)

    @cached_property
    def traffic(self) -> JsonObject | None:
        """The traffic policy; None where it has none, or a wrong one."""
        try:
            policy = get_parameter(self.message, TRAFFIC)
        except InvalidConfig:
            return None
        return policy if isinstance(policy, dict) and not traffic_problem(policy, self.message) else None

    def versions(self, there: Iterable[int]) -> list[int]:
        """Return which of the versions that are there it serves by its version policy."""
        return [] if self.mistake else version_policy.select(self.message, there)

    def answers(self, there: Iterable[int]) -> int:
        """Return the version that answers where a request names none; 0 where it serves none."""
        return default_version(self.versions(there), self.aliases)

    def served(self, there: Iterable[int]) -> "Served":
        """Return what it serves of the versions that are there."""
        versions = self.versions(there)
        answers = default_version(versions, self.aliases)
        return Served(versions, answers, self._shares(answers))

    def _shares(self, answers: int) -> dict[str, float]:
        if self.traffic is None:
            return {}
        weight = float(cast(float, self.traffic.get("weight", 0)))
        stable, candidate = _arm(self.traffic.get("stable", answers)), _arm(self.traffic.get("candidate"))
        return {stable: round(100 - weight, 6), candidate: round(weight, 6)}

    # -- what is wrong with it ---------------------------------------------------------------------------------------
    def problems(self, name: str) -> list[Problem]:
        """Return the rules that it breaks as the configuration of a model of that name; see `validation`."""
        if name not in self._problems:
            self._problems[name] = validation.validate(self.message, name=name, complete=False)
        return self._problems[name]

    def misfits(self, file: ModelFile) -> list[Misfit]:
        """Return where it contradicts a model file; see `file_check`."""
        if file not in self._misfits:
            self._misfits[file] = misfits(self.message, file)
        return self._misfits[file]

    @cached_property
    def _misfits(self) -> dict[ModelFile, list[Misfit]]:
        return {}

    @cached_property
    def _problems(self) -> dict[str, list[Problem]]:
        return {}

    def line_of(self, field: str) -> int:
        """Return the line on which a field stands, or what holds it; 0 where neither is in the text."""
        place = self.places.locate(field)
        return place[0] if place else 0

    # -- beside another ----------------------------------------------------------------------------------------------
    def same_text(self, other: "Document") -> bool:
        """Whether both texts differ in nothing but the end of the last line."""
        return self.text.rstrip("\n") == other.text.rstrip("\n")

    def same_meaning(self, other: "Document", versions: list[int]) -> bool:
        """Whether clients meet the same of both, which serve these versions; see `meaning`."""
        if self == other:
            return True
        one = self._meaning(versions)
        return self.same_text(other) if one is None else one == other._meaning(versions)

    def _meaning(self, versions: list[int]) -> Meaning | None:
        """Return nothing for a text with mistakes, of which nothing is known but itself."""
        try:
            return meaning(self.message, versions)
        except (InvalidConfig, ValueError, TypeError, AttributeError, RecursionError):
            return None

    def effect_after(self, before: "Document") -> Effect:
        """Return what a server does when it loads this where it serves `before`; a text with mistakes is a reload."""
        return "reload" if self.mistake or before.mistake else effect(before.message, self.message)

    def changed_fields(self, before: "Document") -> list[str]:
        """Return the outermost fields that differ, in the order of model_config.proto; none of a text with mistakes."""
        if self.mistake or before.mistake:
            return []
        one, other = ({field.name: value for field, value in each.message.ListFields()} for each in (before, self))
        return [field.name for field in ModelConfig.DESCRIPTOR.fields if one.get(field.name) != other.get(field.name)]

    # -- edits: InvalidConfig where the text has mistakes ------------------------------------------------------------
    def edited(self, change: Callable[[ModelConfig], object]) -> "Document":
        """Return the document after a change of its message, such as `lambda config: set_aliases(config, {})`."""
        wanted = ModelConfig()
        wanted.CopyFrom(self.message)
        change(wanted)
        return self.with_message(wanted)

    def with_message(self, wanted: ModelConfig) -> "Document":
        """Return a document that means `wanted`, with as much of this text as can stay."""
        if wanted == self.message:
            return self
        found = Document.read(edit.edited(self.text, self.message, wanted))
        return found if not found.mistake and found.message == wanted else Document.read(model_config.format(wanted))

    def with_aliases(self, aliases: Mapping[str, int]) -> "Document":
        """Return one with these names of versions and no others."""
        return self.edited(lambda config: set_aliases(config, aliases))

    def with_traffic(self, policy: JsonObject | None) -> "Document":
        """Return one with this traffic policy; None takes it away."""
        return self.edited(lambda config: set_traffic(config, None if policy is None else policy_of(policy)))

    def without_traffic(self) -> "Document":
        """Return one of which one version answers all; itself where it has mistakes."""
        return self if self.mistake else self.with_traffic(None)

    def pinned(self, versions: Iterable[int], there: Iterable[int]) -> "Document":
        """Return one that serves exactly these versions, now and after others are published: it names them (`specific`).

        One that serves them already stays as it is, unless it serves all there are.
        """
        return self.edited(lambda config: _pin(config, versions, there))

    def live(self, versions: Iterable[int], there: Iterable[int]) -> "Document":
        """Return one that serves these versions and those with a name; the highest of `versions` answers by default.

        A name of a version that is not there is left away: a server would refuse it.
        """
        wanted, known = set(versions), set(there)
        named = {name: number for name, number in self.aliases.items() if number in known and name != DEFAULT_ALIAS}
        return self._answered(named, wanted | set(named.values()), max(wanted, default=0), known)

    def answered(self, versions: Iterable[int], answers: int, there: Iterable[int]) -> "Document":
        """Return one that serves exactly these versions, of which `answers` answers where a request names none.

        Other names stay, but for those of versions that are not served.
        """
        served = set(versions)
        named = {name: number for name, number in self.aliases.items() if number in served and name != DEFAULT_ALIAS}
        return self._answered(named, served, answers, there)

    def _answered(self, named: Mapping[str, int], served: set[int], answers: int, there: Iterable[int]) -> "Document":
        default = {DEFAULT_ALIAS: answers} if answers and answers != max(served) else {}

        def change(config: ModelConfig) -> None:
            set_aliases(config, {**named, **default})
            _pin(config, served, there)

        return self.edited(change)

    def merged(self, base: "Document", theirs: "Document") -> "Document | None":
        """Return theirs with what this one changed of `base`, line by line, or else field by field; None where both changed the
        same, or a text has mistakes."""
        if self.mistake or base.mistake or theirs.mistake:
            return None
        wanted = merged_fields(base.message, self.message, theirs.message)
        if wanted is None:
            return None
        text = merged_lines(base.text, self.text, theirs.text)
        found = None if text is None else Document.read(text)
        return found if found and not found.mistake and found.message == wanted else theirs.with_message(wanted)

    def stamped(self, number: int) -> str:
        """Return what is written for a release: the text with its number, as the last line."""
        ended = self.text if not self.text or self.text.endswith("\n") else self.text + "\n"
        return ended + _LINE % number


@lru_cache(KEPT)
def kept(text: str) -> Document:
    return Document(text)


def stamp_of(text: str) -> int | None:
    """Return the number of the release in a text; None where it says none, or is no configuration."""
    try:
        return release_of(model_config.parse(text))
    except InvalidConfig:
        return None


NOTHING = Document("")


def _pin(config: ModelConfig, versions: Iterable[int], there: Iterable[int]) -> None:
    wanted = sorted(versions)
    if version_policy.select(config, there) != wanted or config.version_policy.HasField("all"):
        version_policy.set_specific(config, wanted)


def _arm(arm: object) -> str:
    return str(arm.get("url", "")) if isinstance(arm, dict) else str(arm)
