"""The metrics of a handler, including the metrics that a metrics.yaml names under `model_metrics`.

Source: pytorch/serve, docs/metrics.md.
"""

from typing import Any

from .metric_cache_abstract import MetricCacheAbstract
from .metric_cache_errors import MetricsCacheIOError, MetricsCacheKeyError, MetricsCachePyYamlError
from .metric_type_enum import MetricTypes

# The metrics in TorchServe's own metrics.yaml, which is the default.
_BUILT_IN = {
    "gauge": [
        {"name": name, "unit": "ms", "dimensions": ["ModelName", "Level"]} for name in ("HandlerTime", "PredictionTime")
    ]
}


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """config_file_path: a metrics.yaml; "" or None for TorchServe's own."""

    def __init__(self, config_file_path: str | None) -> None:
        super().__init__(config_file_path)
        self._parsed_file: Any = None
        if config_file_path:
            self._parse_yaml_file(config_file_path)

    def _parse_yaml_file(self, config_file_path: str) -> None:
        import yaml

        try:
            with open(config_file_path, encoding="utf-8") as file:
                self._parsed_file = yaml.safe_load(file)
        except OSError as error:
            raise MetricsCacheIOError(f"the metrics configuration cannot be read: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise MetricsCachePyYamlError(f"the metrics configuration is no YAML: {error}") from None

    def _parse_metrics_section(self, key: str = "model_metrics") -> dict[str, Any]:
        if not self.config_file_path:
            return dict(_BUILT_IN)
        if not isinstance(self._parsed_file, dict) or key not in self._parsed_file:
            raise MetricsCacheKeyError(f"the metrics configuration has no '{key}'")
        return self._parsed_file[key] or {}

    def initialize_cache(self) -> None:
        kinds = {kind.value: kind for kind in MetricTypes}
        for kind, metrics in self._parse_metrics_section().items():
            if kind not in kinds:
                raise MetricsCacheKeyError(f"'{kind}' in the metrics configuration is none of {', '.join(kinds)}")
            for metric in metrics or ():
                try:
                    self.add_metric_to_cache(metric["name"], metric["unit"], list(metric["dimensions"]), kinds[kind])
                except KeyError as missing:
                    raise MetricsCacheKeyError(f"a metric of the metrics configuration has no {missing}") from None
