"""The program of a child process, which runs a model's own code, or a backend with `slipway.isolation: process`.

It imports only serving.backends.channel, serving.core.errors, the standard library and numpy, because a model may bring its own
Python. Only backend_stub imports a backend. serving.backends.child runs the program by path (see __main__.py), and exchanges
the messages of serving.backends.channel.messages with it.
"""
