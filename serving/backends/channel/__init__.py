"""The channel between the server and a child process: messages over sockets, tensors in shared memory.

It imports only the standard library and numpy, because a model's own Python imports it too. The server's part for children
(serving.backends.child) and the program of the children (serving.child_program) use it.
"""
