"""The program of a child process, which runs a model's own code, or a backend with `slipway.isolation: process`.

It imports serving.backends.channel, serving.core.errors, the standard library and numpy alone, because a model may bring its
own Python; backend_stub alone imports its backend. serving.backends.child runs it by path (see __main__.py) and exchanges the
messages of serving.backends.channel.messages with it.
"""
