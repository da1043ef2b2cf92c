"""Names the classes of an output for everybody, in the parameter `slipway.class_names` of the model's configuration."""

from collections.abc import Sequence

from dashboard.access.authorisation import Actor, Right, require
from dashboard.configuration.services import config_apply
from dashboard.models import Model, Release
from dashboard.releases.selectors import newest_release
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors
from repository.config.class_names import class_names, set_class_names

MAX_NAMES = 5_000


@repository_errors()
def class_names_set(*, model: Model, actor: Actor, output: str, names: Sequence[str]) -> Release:
    """Make a release in which an output's classes have these names, by index; an empty list removes the names.

    Raises Conflict if a label file names the classes, or the model has no configuration yet.
    Raises Invalid if there are too many names, or no such output. It also raises the errors of `config_apply`.
    """
    require(actor, Right.OPERATE)
    newest = newest_release(model)
    if newest is None:
        raise Conflict(f"model '{model.name}' has no configuration yet; publish a version first")
    if len(names) > MAX_NAMES:
        raise Invalid.at("names", f"expected at most {MAX_NAMES} names, not {len(names)}; use a label file for more")
    document = newest.document
    config = document.message
    row = next((one for one in config.output if one.name == output), None)
    if row is None and config.output:
        there = ", ".join(f"'{one.name}'" for one in config.output)
        raise Invalid.at("output", f"model '{model.name}' has no output '{output}'; it has {there}")
    if row is not None and row.label_filename:
        raise Conflict(
            f"the classes of '{output}' are named by the label file '{row.label_filename}'; change that, or take "
            "label_filename out of the configuration first"
        )
    every = class_names(config) | {output: list(names)}
    did = "Named" if names else "Took away the names of"
    return config_apply(
        model=model,
        actor=actor,
        document=document.edited(lambda changed: set_class_names(changed, every)),
        summary=f"{did} the classes of {output}",
        base_release=newest.number,
    )
