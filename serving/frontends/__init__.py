"""The listeners: each serves a transport and its protocols on a port.

Listeners may import every room of the server. The child rooms never import a listener; from the bottom up they are shared,
http1, http2, rest, grpc, openai and metrics.
The program (`serving.program`) and the frontend workers (`serving.workers.program`) start the listeners.
A listener is created with (server, options, authoriser), and is a `frontend.Frontend`.
"""
