"""The server's side of HTTP/2 (RFC 9113), and the part of the client's side that forwards a stream to another process.

This room does not depend on gRPC. It may import `core`, `cli`, `resources` and `frontends.shared`.
`frontends.grpc` subclasses its `Stream`, and the listener `frontends.grpc_server` creates its `Connection`s. A frontend worker
forwards streams by `forwarding`.
"""
