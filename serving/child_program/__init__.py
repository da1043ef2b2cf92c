"""The program of a child process that runs a model's user code, or a backend that was asked to live apart from the server.

It imports serving.backends.channel, serving.core.errors, the standard library and numpy alone, since a model may bring its own
Python; only backend_stub imports what its backend needs. serving.backends.child runs it by path (see __main__.py) and talks to
it in the messages of serving.backends.channel.messages.
"""
