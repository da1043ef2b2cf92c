"""The gRPC protocol (inference.GRPCInferenceService, health checking, reflection): a call is a stream of `frontends.http2`.

This room imports `core`, `extensions`, `server`, `frontends.shared` and `frontends.http2`, and no listener.
The listener `frontends.grpc_server` parses request headers by `call_headers`, and creates a call by `methods`.
"""
