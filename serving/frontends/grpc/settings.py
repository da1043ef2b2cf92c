"""RPCs of the logging and trace settings."""

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from serving.server import InferenceServer


def logging(server: InferenceServer, request: Any) -> Any:
    changes = {}
    for name, setting in request.settings.items():
        choice = setting.WhichOneof("parameter_choice")
        changes[name] = getattr(setting, choice) if choice else None
    server.log_settings.update(changes)
    answer = pb.LogSettingsResponse()
    for name, value in server.log_settings.values().items():
        row = answer.settings[name]
        if isinstance(value, bool):
            row.bool_param = value
        elif isinstance(value, int):
            row.uint32_param = value
        else:
            row.string_param = value
    return answer


def trace(server: InferenceServer, request: Any) -> Any:
    """A setting without a value is cleared."""
    if request.settings:
        changes = {name: list(setting.value) or None for name, setting in request.settings.items()}
        server.update_trace_settings(request.model_name, changes)
    answer = pb.TraceSettingResponse()
    for name, values in server.trace_values(request.model_name).items():
        answer.settings[name].value.extend(values)
    return answer
