"""Models on several processes. This server does not support such models: an import raises an error."""

MISSING = (
    "{name} divides one model among several processes (torchrun), which this server does not do: serve the model with vLLM or "
    "another server made for that, or on one GPU"
)
