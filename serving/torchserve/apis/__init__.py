"""TorchServe's inference, management and metrics APIs, over HTTP and gRPC.

May import the rooms of both transports, of gRPC and of metrics. `serving.torchserve.listeners` binds the APIs to their
ports. The registered models are in `serving.torchserve.registry`. Source: docs/ of TorchServe 0.12, and its answers.
"""
