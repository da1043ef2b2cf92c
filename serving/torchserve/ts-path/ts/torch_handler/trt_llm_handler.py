"""Not supported: this is a handler for TensorRT-LLM."""

raise ImportError(
    "ts.torch_handler.trt_llm_handler needs TensorRT-LLM, which this server does not bring: write a handler, or a model.py, "
    "that calls it"
)
