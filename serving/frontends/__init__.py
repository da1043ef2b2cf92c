"""The protocols: each module decodes, calls `serving.server.InferenceServer`, encodes, and maps error codes once.

A frontend is made with (server, options, authoriser) and has:
    await start()   bind and listen; raises OSError
    address         (host, port) actually bound, after start (port 0 means "any")
    await drain()   accept no new connections; existing ones finish the requests under way, then close
    await close()   end what is left
"""
