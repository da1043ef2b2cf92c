"""The masks of a capture: read from a person's words, and checked against the tensors of the model."""

import math
from collections.abc import Mapping

from dashboard.catalog.selectors import versions
from dashboard.configuration.signatures import served_signature
from dashboard.models import Model
from dashboard.releases.selectors import current_document
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Invalid
from repository.core.captures import Mask

RULES = ("drop", "hash", "round")
MOST_MASKS = 1000


def datatypes_of(model: Model) -> tuple[dict[str, str], dict[str, str]]:
    """Return the datatypes of the inputs and of the outputs by name, of all versions that are published."""
    document = current_document(model)
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for version in versions(model).filter(state=VersionState.PUBLISHED):
        signature = served_signature(document, version)
        inputs |= {row["name"]: row["datatype"] for row in signature.get("inputs", [])}
        outputs |= {row["name"]: row["datatype"] for row in signature.get("outputs", [])}
    return inputs, outputs


def checked_masks(field: str, masks: Mapping[str, str], datatypes: Mapping[str, str]) -> dict[str, Mask]:
    """Return the masks of tensors: "drop", "hash", or "round" with its step, such as "round 0.1".

    Raises Invalid for an unknown tensor or rule, or a rule that does not fit the datatype, because a mistake in a name
    would let private values be written.
    """
    if len(masks) > MOST_MASKS:
        raise Invalid.at(field, f"expected at most {MOST_MASKS} masks")
    found = {}
    for name, words in masks.items():
        if name not in datatypes:
            known = ", ".join(list(datatypes)[:10]) or "none"
            raise Invalid.at(field, f"the model has no tensor '{name[:80]}' among its {field}: {known}")
        found[name] = _mask(field, name, words, datatypes[name])
    return found


def _mask(field: str, name: str, words: str, datatype: str) -> Mask:
    rule, _, step = words.strip().partition(" ")
    if rule == "drop" and not step:
        return Mask(rule=rule)
    if rule == "hash" and not step:
        if datatype != "BYTES":
            raise Invalid.at(field, f"'{name}' is {datatype}: only BYTES can be hashed; drop or round it")
        return Mask(rule=rule)
    if rule == "round":
        if datatype in ("BYTES", "BOOL"):
            raise Invalid.at(field, f"'{name}' is {datatype}: only numbers can be rounded; drop it")
        return Mask(rule=rule, step=_step(field, name, step))
    raise Invalid.at(field, f"'{name}': expected 'drop', 'hash' or 'round' with a step, such as 'round 0.1'")


def _step(field: str, name: str, text: str) -> float:
    try:
        step = float(text)
    except ValueError:
        step = math.nan
    if not 1e-30 < step < 1e30:
        raise Invalid.at(field, f"'{name}': expected a step over 0 after 'round', such as 'round 0.1'")
    return step
