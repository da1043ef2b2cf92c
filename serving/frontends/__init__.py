"""The listeners: each joins a transport and its protocols, and serves them on a port.

Listeners may import every room of the server. The child rooms never import a listener; from the bottom up they are shared,
http1, http2, rest, grpc, openai and metrics.
The program (`serving.program`) starts the listeners, and so does a frontend worker (`serving.workers.program`).

A listener is made with (server, options, authoriser), and is a `frontend.Frontend`.
"""
