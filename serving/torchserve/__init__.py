"""All of TorchServe: its archives and handlers, registered models, its APIs and its command line.

The packages of `torchserve`, from the bottom up, are ts-path, handlers, backend, registry, telemetry and apis. The packages may
import every package of the server. `python -m serving.torchserve` accepts TorchServe's own command line.
"""
