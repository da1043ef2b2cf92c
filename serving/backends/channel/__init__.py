"""The channel between the server and a child process: messages over sockets, tensors in shared memory.

It imports only the standard library and numpy, because a model's own Python imports it too. serving.backends.child and
serving.child_program use it.
"""
