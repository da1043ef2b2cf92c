"""All of TorchServe: its archives and handlers, registered models, its APIs and its command line.

The rooms of `torchserve`, from the bottom up, are ts-path, handlers, backend, registry, telemetry and apis. May import every
room of the server. `python -m serving.torchserve` takes TorchServe's own command line.
"""
