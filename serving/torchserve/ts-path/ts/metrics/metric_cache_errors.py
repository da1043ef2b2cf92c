"""What is wrong with a metric, or with the file that names metrics."""


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
