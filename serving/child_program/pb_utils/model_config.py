"""pb_utils.ModelConfig, with which `auto_complete_config` completes a configuration.

It has the same methods as Triton's class of that name, and refuses the same calls, with ValueError.
"""

import json
from typing import Any

JsonObject = dict[str, Any]
"""A configuration, or a part of one, in JSON's types."""

_INPUT_PROPERTIES = {"name", "data_type", "dims", "optional"}
_OUTPUT_PROPERTIES = {"name", "data_type", "dims"}


class ModelConfig:
    """The configuration, in JSON's types: the argument and the result of `auto_complete_config`."""

    def __init__(self, model_config: str) -> None:
        self._config: JsonObject = json.loads(model_config)

    def as_dict(self) -> JsonObject:
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        given = self._config.get("max_batch_size", 0)
        if given > max_batch_size:
            raise ValueError(
                f"the configuration of model '{self._name}' has max_batch_size {given}, but auto_complete_config sets "
                f"{max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"the configuration of model '{self._name}' has {other}, but auto_complete_config sets dynamic_batching"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: JsonObject) -> None:
        unknown = set(transaction_policy_dict) - {"decoupled"}
        if unknown:
            raise ValueError(f"model_transaction_policy has no property {_listed(unknown)}; expected 'decoupled'")
        policy = self._config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = bool(transaction_policy_dict["decoupled"])
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"the configuration of model '{self._name}' has decoupled: {policy['decoupled']}, but auto_complete_config "
                f"sets {decoupled}"
            )
        policy["decoupled"] = decoupled

    def add_input(self, input: JsonObject) -> None:
        self._add("input", input, _INPUT_PROPERTIES)

    def add_output(self, output: JsonObject) -> None:
        self._add("output", output, _OUTPUT_PROPERTIES)

    @property
    def _name(self) -> str:
        return str(self._config.get("name", ""))

    def _add(self, kind: str, tensor: JsonObject, properties: set[str]) -> None:
        label = f"{kind} '{tensor.get('name', '')}' that auto_complete_config adds to model '{self._name}'"
        unknown = set(tensor) - properties
        if unknown:
            raise ValueError(f"{label} has no property {_listed(unknown)}; expected {_listed(properties)}")
        for needed in ("name", "data_type", "dims"):
            if needed not in tensor:
                raise ValueError(f"{label} is missing '{needed}'")
        existing = next((one for one in self._config.setdefault(kind, []) if one["name"] == tensor["name"]), None)
        if existing is None:
            self._config[kind].append(tensor)
            return
        self._check_same(kind, existing, tensor)
        existing.update(tensor)

    def _check_same(self, kind: str, existing: JsonObject, tensor: JsonObject) -> None:
        unset = {"data_type": ("TYPE_INVALID", None), "dims": ([], None), "optional": (None, False)}
        for key, value in tensor.items():
            if key != "name" and existing.get(key) not in unset[key] and existing[key] != value:
                raise ValueError(
                    f"the configuration of model '{self._name}' has {key} {existing[key]} for {kind} '{tensor['name']}', but "
                    f"the model has {value}"
                )


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
