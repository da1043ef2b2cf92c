"""Errors of metrics, and of the file that names them."""


class GeneralMetricsCacheError(Exception):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class MetricsCacheIOError(OSError):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class MetricsCachePyYamlError(Exception):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class MetricsCacheTypeError(TypeError):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class MetricsCacheValueError(ValueError):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class MetricsCacheKeyError(KeyError):
    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)
