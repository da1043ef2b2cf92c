"""The gRPC protocol (inference.GRPCInferenceService, health checking, reflection): a call is a stream of `frontends.http2`.

This room imports `core`, `extensions`, `server`, `frontends.shared` and `frontends.http2`, and no listener.
The listener in `frontends.grpc_server` calls it: it parses request headers by `call_headers` and makes a call by `methods`.
"""
