"""TorchServe's inference, management and metrics APIs, over HTTP and gRPC.

This package may import both transports, gRPC and metrics. `serving.torchserve.listeners` binds the APIs to their
ports. The registered models are in `serving.torchserve.registry`. Source: docs/ of TorchServe 0.12, and its answers.
"""
