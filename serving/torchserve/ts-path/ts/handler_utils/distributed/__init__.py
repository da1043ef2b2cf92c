"""One model on several processes, which this server does not support: an import raises an error that says so."""

MISSING = (
    "{name} divides one model among several processes (torchrun), which this server does not do: serve the model with vLLM or "
    "another server made for that, or on one GPU"
)
