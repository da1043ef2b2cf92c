"""The load parameter `slipway.golden`: examples that the loaded version must answer. Format: repository.core.golden."""

from repository.core.errors import InvalidExample
from repository.core.golden import GoldenRequest, read_golden
from serving.core.errors import ServingError, invalid
from serving.core.example_tensors import to_array
from serving.core.output_target import OutputTarget
from serving.core.request import InferenceRequest
from serving.frontends.rest.infer_header import check_header
from serving.models.golden_requests import GoldenCheck

PARAMETER = "slipway.golden"


def read_checks(text: str, model: str) -> list[GoldenCheck]:
    """Return the golden requests for a model. Raises INVALID_ARG, which names the request, if one is wrong."""
    try:
        golden = read_golden(text)
    except InvalidExample as error:
        raise invalid(f"load parameter '{PARAMETER}': {error.message}") from None
    return [GoldenCheck(one, _make_request(one, model)) for one in golden]


def _make_request(golden: GoldenRequest, model: str) -> InferenceRequest:
    request = golden.request
    try:
        header, _ = check_header({"inputs": [], "outputs": request.outputs, "parameters": request.parameters})
    except ServingError as error:
        raise invalid(f"golden request '{golden.name[:200]}': {error.message}") from None
    return InferenceRequest(
        model,
        {tensor.name: to_array(tensor) for tensor in request.inputs},
        requested_outputs=header.requested,
        parameters=header.parameters,
        priority=header.priority,
        timeout_us=header.timeout_us,
        sequence=header.sequence,
        output_targets={name: OutputTarget(rule) for name, rule in header.rules.items()},
    )
