"""YAML with the line of each value, and YAML that reads well in a diff."""

from typing import Any

import yaml

from dashboard.shared.exceptions import Invalid
from dashboard.text.shapes import Place

_WIDTH = 120
_MANY = 1000  # a longer list of plain values is a tensor, whose elements need no line


def read(content: str, file: str) -> tuple[Any, Place]:
    """Return the value of a file (None for an empty one), and the place with the lines of its parts.

    Raises Invalid, with file and line, for what is no YAML, an entry that stands twice, and an alias, which a small text could
    use to become a huge value.
    """
    lines: dict[tuple[object, ...], int] = {}
    place = Place(file, lines)
    loader = yaml.CSafeLoader(content)
    try:
        node = loader.get_single_node()
        return (None if node is None else _value(loader, node, place, lines, set())), place
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise Invalid(f"in {file}{where}: this is no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Invalid(f"in {file}: this is no YAML: {reason[:200]}") from None
    finally:
        loader.dispose()


def _value(loader: Any, node: yaml.Node, place: Place, lines: dict[tuple[object, ...], int], seen: set[int]) -> object:
    """Return the value of a node, and store the lines of its parts."""
    lines.setdefault(place.trail, node.start_mark.line + 1)
    if id(node) in seen:
        raise place.error("aliases (such as *name) are not read; write the value again")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        if len(node.value) > _MANY and all(isinstance(one, yaml.ScalarNode) for one in node.value):
            return [loader.construct_object(one) for one in node.value]
        return [_value(loader, one, place.at(number), lines, seen) for number, one in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node)
            inner = place.at(key if isinstance(key, str | int | float | None) else str(key))
            lines[inner.trail] = key_node.start_mark.line + 1
            if isinstance(key, list | dict) or key in found:
                raise inner.error("it stands there twice" if not isinstance(key, list | dict) else "expected a name")
            found[key] = _value(loader, value_node, inner, lines, seen)
        return found
    return loader.construct_object(node)


def written(value: object) -> str:
    """Return a value as YAML: the same text for the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=False)


class _Dumper(yaml.CSafeDumper):
    """Writes a list of plain values on one line, and a text of several lines as it stands."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _list(dumper: _Dumper, value: list[object]) -> yaml.Node:
    plain = not any(isinstance(one, list | dict) for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)
