"""A configuration as one object: the text of a config.pbtxt, its protobuf message, and functions on both.

Only code that reads a text (from disk, a form, REST, an upload or a release's row) creates a document. Other code passes it on.
An edit returns another document, whose text differs from the old text as little as possible.

The dashboard writes the number of the release into the text (`slipway.release`), so that a server can report the release that
it serves. People do not see that number. The text of a document does not contain it; `stamped` adds it and `stamp_of` reads it.

A text with mistakes is a document, too. Such a document serves no version and has no aliases, and `message` raises its mistake.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from repository.config.traffic import TrafficPolicy, policy_of, set_traffic, traffic_problem
from repository.core.errors import InvalidConfig, Problem
from repository.core.json_types import JsonObject

_STAMP = SLIPWAY_PREFIX + RELEASE
_LINE = f'parameters {{ key: "{_STAMP}" value {{ string_value: "%d" }} }}\n'
_WRITTEN = re.compile(
    rf'^parameters \{{ key: "{re.escape(_STAMP)}" value \{{ string_value: "\d+" \}} \}}\n?', re.MULTILINE
)

_TRAFFIC = SLIPWAY_PREFIX + TRAFFIC
_POLICY = re.compile(rf'(key: "{re.escape(_TRAFFIC)}"\s+value \{{\s+string_value: )("(?:[^"\\\n]|\\.)*")')


def default_version(versions: Sequence[int], aliases: Mapping[str, int]) -> int:
    """Return the version that answers requests that name no version; 0 if there are no versions."""
    return aliases.get(DEFAULT_ALIAS, max(versions, default=0))


class Served(NamedTuple):
    """The versions of a model that a configuration serves, and their shares of the requests.

    answers: the version that answers requests that name no version, if no policy shares them; 0 if nothing is served.
    traffic: version, or address of another server -> its per cent of the requests that name no version; {} if one version
    answers all of them.
    """

    versions: list[int]
    answers: int
    traffic: dict[str, float]


@dataclass(frozen=True)
class Document:
    """Created by `read`. text: the text as a person wrote it, without the number of its release."""

    text: str

    @staticmethod
    def read(text: str) -> "Document":
        """Return the document of a text, without the number of its release."""
        found = Document(_WRITTEN.sub("", text))
        # The text may have the number in another form.
        if _STAMP in found.text and not found.mistake and _STAMP in found.message.parameters:
            return found.edited(lambda config: config.parameters.pop(_STAMP))
        return found

    def __bool__(self) -> bool:
        return bool(self.text)

    # -- contents ----------------------------------------------------------------------------------------------------
    @cached_property
    def message(self) -> ModelConfig:
        """The message of the text, which no caller may change. Raises InvalidConfig, with line and column, for a mistake."""
        if isinstance(self._parsed, InvalidConfig):
            raise self._parsed.with_traceback(None)
        return self._parsed

    @cached_property
    def mistake(self) -> InvalidConfig | None:
        """The mistake in the text, or None if the text is a configuration."""
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
        """The places of the fields in the text."""
        return Places(self.text)

    @cached_property
    def aliases(self) -> dict[str, int]:
        """The aliases: name -> version."""
        try:
            names = get_parameter(self.message, ALIASES, {})
        except InvalidConfig:
            return {}
        return {} if aliases_problem(names, self.message) else cast(dict[str, int], names)

    @cached_property
    def traffic(self) -> JsonObject | None:
        """The traffic policy, or None if the configuration has no policy or an invalid one."""
        try:
            policy = get_parameter(self.message, TRAFFIC)
        except InvalidConfig:
            return None
        return policy if isinstance(policy, dict) and not traffic_problem(policy, self.message) else None

    def versions(self, there: Iterable[int]) -> list[int]:
        """Return the versions that the version policy selects from `there`, the versions that exist."""
        return [] if self.mistake else version_policy.select(self.message, there)

    def answers(self, there: Iterable[int]) -> int:
        """Return the version that answers requests that name no version; 0 if no version is served."""
        return default_version(self.versions(there), self.aliases)

    def served(self, there: Iterable[int]) -> "Served":
        """Return the served versions among `there`, the versions that exist."""
        versions = self.versions(there)
        answers = default_version(versions, self.aliases)
        return Served(versions, answers, self._shares(answers))

    def _shares(self, answers: int) -> dict[str, float]:
        if self.traffic is None:
            return {}
        weight = float(cast(float, self.traffic.get("weight", 0)))
        stable, candidate = _arm(self.traffic.get("stable", answers)), _arm(self.traffic.get("candidate"))
        return {stable: round(100 - weight, 6), candidate: round(weight, 6)}

    # -- problems ----------------------------------------------------------------------------------------------------
    def problems(self, name: str) -> list[Problem]:
        """Return the rules that the document breaks as the configuration of the model `name`; see `validation`."""
        if name not in self._problems:
            self._problems[name] = validation.validate(self.message, name=name, complete=False)
        return self._problems[name]

    def misfits(self, file: ModelFile) -> list[Misfit]:
        """Return the contradictions between the document and a model file; see `file_check`."""
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
        """Return the line of a field, or of the message that contains the field; 0 if the text has neither."""
        place = self.places.locate(field)
        return place[0] if place else 0

    # -- comparison --------------------------------------------------------------------------------------------------
    def same_text(self, other: "Document") -> bool:
        """Return whether both texts are equal, apart from the end of the last line."""
        return self.text.rstrip("\n") == other.text.rstrip("\n")

    def same_meaning(self, other: "Document", versions: list[int]) -> bool:
        """Return whether both documents mean the same to clients if they serve `versions`; see `meaning`."""
        if self == other:
            return True
        one = self._meaning(versions)
        return self.same_text(other) if one is None else one == other._meaning(versions)

    def _meaning(self, versions: list[int]) -> Meaning | None:
        """Return the meaning of this document, or None for a text with mistakes."""
        try:
            return meaning(self.message, versions)
        except (InvalidConfig, ValueError, TypeError, AttributeError, RecursionError):
            return None

    def effect_after(self, before: "Document") -> Effect:
        """Return the effect on a server that serves `before` and loads this document; "reload" if a text has mistakes."""
        return "reload" if self.mistake or before.mistake else effect(before.message, self.message)

    def changed_fields(self, before: "Document") -> list[str]:
        """Return the outermost fields that differ, in the order of model_config.proto; [] if a text has mistakes."""
        if self.mistake or before.mistake:
            return []
        one, other = ({field.name: value for field, value in each.message.ListFields()} for each in (before, self))
        return [field.name for field in ModelConfig.DESCRIPTOR.fields if one.get(field.name) != other.get(field.name)]

    # -- edits; they raise InvalidConfig if the text has mistakes -----------------------------------------------------
    def edited(self, change: Callable[[ModelConfig], object]) -> "Document":
        """Return the document after a change of its message, such as `lambda config: set_aliases(config, {})`."""
        wanted = ModelConfig()
        wanted.CopyFrom(self.message)
        change(wanted)
        return self.with_message(wanted)

    def with_message(self, wanted: ModelConfig) -> "Document":
        """Return a document whose message is `wanted`, with as little change to this text as possible."""
        if wanted == self.message:
            return self
        found = Document.read(edit.edited(self.text, self.message, wanted))
        return found if not found.mistake and found.message == wanted else Document.read(model_config.format(wanted))

    def with_aliases(self, aliases: Mapping[str, int]) -> "Document":
        """Return a document with these aliases and no others."""
        return self.edited(lambda config: set_aliases(config, aliases))

    def with_traffic(self, policy: JsonObject | None) -> "Document":
        """Return a document with this traffic policy; None removes the policy."""
        traffic = None if policy is None else policy_of(policy)
        next_step = self._with_next_policy(traffic) if traffic is not None else None
        return next_step or self.edited(lambda config: set_traffic(config, traffic))

    def _with_next_policy(self, policy: TrafficPolicy) -> "Document | None":
        """Return a document whose only change is the value of its policy; None if the text has no policy as protobuf writes it.

        Only the new text is parsed, because a release of each step of a rollout is made in this way.
        """
        wanted = ModelConfig()
        set_traffic(wanted, policy)
        value = _POLICY.findall(model_config.format(wanted))[0][1]
        text, places = _POLICY.subn(lambda place: place[1] + value, self.text)
        found = Document(text)
        changed = (
            places == 1 and not found.mistake and found.message.parameters.get(_TRAFFIC) == wanted.parameters[_TRAFFIC]
        )
        return found if changed else None

    def without_traffic(self) -> "Document":
        """Return a document without a traffic policy; the document itself if its text has mistakes."""
        return self if self.mistake else self.with_traffic(None)

    def pinned(self, versions: Iterable[int], there: Iterable[int]) -> "Document":
        """Return a document that serves exactly these versions; if the policy changes, the new policy names them (`specific`).

        A document that serves exactly these versions already is returned unchanged, unless its policy is `all`.
        """
        return self.edited(lambda config: _pin(config, versions, there))

    def live(self, versions: Iterable[int], there: Iterable[int]) -> "Document":
        """Return a document that serves `versions` and each version with an alias; the highest of `versions` is the default.

        Aliases of versions that do not exist are dropped, because a server would refuse them.
        """
        wanted, known = set(versions), set(there)
        named = {name: number for name, number in self.aliases.items() if number in known and name != DEFAULT_ALIAS}
        return self._answered(named, wanted | set(named.values()), max(wanted, default=0), known)

    def answered(self, versions: Iterable[int], answers: int, there: Iterable[int]) -> "Document":
        """Return a document that serves exactly these versions. Version `answers` answers requests that name no version.

        The document keeps all aliases of served versions other than `default`.
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
        """Return `theirs` with the changes that this document made to `base`, merged by lines or else by fields.

        Return None if both changed the same field, or if a text has mistakes.
        """
        if self.mistake or base.mistake or theirs.mistake:
            return None
        wanted = merged_fields(base.message, self.message, theirs.message)
        if wanted is None:
            return None
        text = merged_lines(base.text, self.text, theirs.text)
        found = None if text is None else Document.read(text)
        return found if found and not found.mistake and found.message == wanted else theirs.with_message(wanted)

    def stamped(self, number: int) -> str:
        """Return the text for config.pbtxt: the text of the document, with the number of its release as the last line."""
        ended = self.text if not self.text or self.text.endswith("\n") else self.text + "\n"
        return ended + _LINE % number


def stamp_of(text: str) -> int | None:
    """Return the number of the release in a text, or None if the text has no such number, or has mistakes."""
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
