"""The server's side of HTTP/2 (RFC 9113), and the part of the client's side that passes a stream on to another process.

This room imports `core`, `cli`, `resources` and `frontends.shared`, and it knows nothing of gRPC.
`frontends.grpc` subclasses its `Stream`, and the listener in `frontends.grpc_server` makes its `Connection`s. A
frontend worker passes streams on by `forwarding`.
"""
