"""KServe V2 over HTTP with Triton's extensions: handlers decode a request, call `serving.server`, and encode its answer.

May import `frontends.http1`, `frontends.shared` and the rooms below them. `frontends.http_server` lists the handlers as routes.
"""
