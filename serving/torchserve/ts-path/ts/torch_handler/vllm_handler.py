"""Not supported: this is a handler for vLLM."""

raise ImportError(
    "ts.torch_handler.vllm_handler needs vLLM, which this server does not bring: write a handler, or a model.py, "
    "that calls it"
)
