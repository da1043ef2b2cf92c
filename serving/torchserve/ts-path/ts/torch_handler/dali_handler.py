"""Not supported: this is a handler for DALI."""

raise ImportError(
    "ts.torch_handler.dali_handler needs DALI, which this server does not bring: write a handler, or a model.py, "
    "that calls it"
)
