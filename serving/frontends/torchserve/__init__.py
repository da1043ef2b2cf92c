"""TorchServe's inference, management and metrics APIs, over HTTP and gRPC.

May import the rooms of both transports, of gRPC and of metrics; `serving.frontends.torchserve_server` puts the APIs on their
ports. What they manage lies in `serving.torchserve`. Source: docs/ of TorchServe 0.12, and what it answers.
"""
