"""The Python of a child process: its interpreter, its environment variables, and the unpacking of packed environments.

It imports serving.core alone. The server's part for child processes (serving.backends.child) and the backends whose models
bring their own Python use it. So does the server's program, which decides once which variables children see.
"""
