"""HTTP/1.1: connections, request heads and bodies, routes, replies and streams, without the protocols that use them.

`routes` sets the largest body of each route. `connection` refuses a larger body by its Content-Length, and `body` refuses a
chunked or compressed body when it grows too large.
May import `frontends.shared` and the rooms below it. Protocols such as rest, openai and metrics handle an `Exchange`. Modules
such as `http_server` and `metrics_server` create a `Listener`.
"""
