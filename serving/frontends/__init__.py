"""The listeners: each puts a transport and its protocols together and serves them on a port.

They may import every room of the server, and their child rooms never import them; the program (`serving.program`) starts them,
and so does a frontend worker (`serving.workers.program`).
From the bottom up the child rooms are shared, http1, http2, rest, grpc, openai and metrics.

A listener is made with (server, options, authoriser), and is a `frontend.Frontend`.
"""
