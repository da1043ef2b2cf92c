"""The Python of a child process: its interpreter, its environment variables, and the unpacking of packed environments.

It imports serving.core alone. The server's side of child processes (serving.backends.child) and the backends whose models
bring their own Python use it. The server's program uses it too, to decide which variables children see.
"""
