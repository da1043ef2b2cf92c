"""The channel between the server and a child process: messages over sockets, tensors in shared memory.

It imports the standard library and numpy alone, because a model's own Python imports it too. The server's side of a child
(serving.backends.child) and the program that runs in it (serving.child_program) call it.
"""
