"""The Python backend: Triton's TritonPythonModel, each instance in a process of its own.

It imports serving.backends.base, serving.backends.child, serving.backends.environments and serving.core; the program of that
process is serving.child_program. The table of backends makes it.
"""
