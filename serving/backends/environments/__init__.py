"""The Python under which a child process runs: interpreter, environment variables, and packed environments unpacked.

It imports serving.core alone. The server's side of child processes (serving.backends.child) and the backends whose
models bring their own Python call it, and the program itself, which decides once which variables children see.
"""
