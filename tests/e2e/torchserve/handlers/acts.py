"""A module-level function that does what the header "act" says, to each request by its place in the batch."""

import io
import os
import time

from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:  # told so once, when the worker starts
        return None
    acts = [context.get_request_header(index, "act") or "show" for index in range(len(data))]
    whole = WHOLE.get(acts[0])
    if whole is not None:
        return whole(data, context)
    return [ANSWERS[act](row, context, index) for index, (act, row) in enumerate(zip(acts, data, strict=True))]


def show(row, context, index):
    """What came: part -> type and content."""
    return {name: [type(part).__name__, said(part)] for name, part in row.items()}


def said(part):
    if isinstance(part, (bytes, bytearray)):
        return bytes(part).decode("latin-1")
    return part


def headers(row, context, index):
    sent = context.get_all_request_header(index)
    wanted = (row.get("body") or b"").decode().split(",")
    return {name: sent.get(name) for name in wanted} | {"id": len(context.get_request_id(index))}


def about(row, context, index):
    properties = context.system_properties
    return {
        "properties": {name: properties[name] for name in ("gpu_id", "batch_size", "server_name", "server_version")},
        "names": sorted(properties),
        "directory": os.path.realpath(os.getcwd()) == os.path.realpath(properties["model_dir"]),
        "manifest": {name: context.manifest[name] for name in ("runtime", "archiverVersion", "model")},
        "model": context.model_name,
        "yaml": context.model_yaml_config,
    }


def status(row, context, index):
    code, _, phrase = (row.get("body") or b"").decode().partition(" ")
    if phrase:
        context.set_response_status(int(code), phrase, index)
    else:
        context.set_response_status(code=int(code), idx=index)
    return f"told {code}"


def header(row, context, index):
    context.set_response_header(index, "X-Made-By", "handler")
    context.set_response_header(index, "cache-control", "max-age=3")
    return "with headers"


def content_type(row, context, index):
    context.set_response_content_type(index, "image/png")
    return b"\x89PNG"


def all_status(row, context, index):
    context.set_all_response_status(202, "Taken")
    return {"taken": True}


def metric(row, context, index):
    context.metrics.add_counter("Seen", 2)
    context.metrics.add_time("Thought", 1.5, index, "ms")
    context.metrics.add_size("Held", 3, index, "MB")
    context.metrics.add_percent("Full", 40, index)
    return "counted"


def batch(row, context, index):
    """How many came with this one, and an answer of its own."""
    code = int(row["body"])
    if code == 0:
        raise ValueError("one of the batch fails")
    context.set_response_status(code, f"Number {index}", index)
    context.set_response_header(index, "X-Asked", str(code))
    return {"asked": code, "batch": len(context.request_ids)}


def tensor(row, context, index):
    import torch  # here, since it takes a worker seconds

    return torch.arange(3)


ANSWERS = {
    "batch": batch,
    "show": show,
    "headers": headers,
    "about": about,
    "status": status,
    "all-status": all_status,
    "header": header,
    "content-type": content_type,
    "metric": metric,
    "echo": lambda row, context, index: row.get("body"),
    "bytes": lambda row, context, index: b"\x00\x01\xff",
    "bytearray": lambda row, context, index: bytearray(b"mutable"),
    "str": lambda row, context, index: "gr\u00fcn",
    "empty-str": lambda row, context, index: "",
    "none": lambda row, context, index: None,
    "int": lambda row, context, index: 7,
    "float": lambda row, context, index: 0.1,
    "bool": lambda row, context, index: True,
    "list": lambda row, context, index: [1, [2.5, "drei"], {"vier": None}],
    "dict": lambda row, context, index: {"\u00e4": 1, "b": [1.0, 1e-9, 1e300], "c": {}, "d": []},
    "nan": lambda row, context, index: {"nan": float("nan"), "inf": float("inf")},
    "tensor": tensor,
    "pid": lambda row, context, index: {"pid": os.getpid()},
}


def fails(data, context):
    raise ValueError("this handler always fails")


def memory(data, context):
    raise MemoryError


def cuda(data, context):
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def prediction(data, context):
    raise PredictionException("Some Prediction Error", 513)


def prediction_default(data, context):
    raise PredictionException("Of some kind")


def slow(data, context):
    time.sleep(60)


def waits(data, context):
    time.sleep(2)
    return ["waited"] * len(data)


def logs(data, context):
    print("a line of the handler's own")
    return ["logged"] * len(data)


def saved(data, context):
    import torch

    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    return [buffer.getvalue()] * len(data)


WHOLE = {
    "fails": fails,
    "memory": memory,
    "cuda": cuda,
    "prediction": prediction,
    "prediction-default": prediction_default,
    "not-a-list": lambda data, context: {"a": 1},
    "tuple": lambda data, context: ("one",) * len(data),
    "too-many": lambda data, context: ["one", "two"] * len(data),
    "none-at-all": lambda data, context: None,
    "no-answers": lambda data, context: [],
    "unserialisable": lambda data, context: [{"object": object()}] * len(data),
    "unknown-type": lambda data, context: [object()] * len(data),
    "exits": lambda data, context: os._exit(3),
    "leaves": lambda data, context: exit(4),
    "sleeps": slow,
    "waits": waits,
    "logs": logs,
    "saved": saved,
}
