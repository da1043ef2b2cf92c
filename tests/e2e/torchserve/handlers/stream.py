"""A handler that answers in pieces."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for number in range(3):
        pieces = [f"piece {number}, "] * len(data)
        send_intermediate_predict_response(pieces, context.request_ids, "Intermediate", 200, context)
    return ["the end"] * len(data)
