"""The listeners: each puts a transport and its protocols together and serves them on a port.

They may import every room of the server, and their child rooms never import them; the program (`serving.program`) starts them,
and so does a frontend worker (`serving.workers.program`).
From the bottom up the child rooms are shared, http1, http2, rest, grpc, openai and metrics.

A listener is made with (server, options, authoriser) and has:
    await start()   bind and listen; raises OSError
    address         (host, port) actually bound, after start (port 0 means "any")
    await drain()   accept no new connections; existing ones finish the requests under way, then close
    await close()   end what is left
"""
