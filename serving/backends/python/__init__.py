"""The Python backend: Triton's TritonPythonModel, with each instance in a separate process.

It imports serving.backends.base, serving.backends.child, serving.backends.environments and serving.core. The program of the
processes is serving.child_program. The table of backends names this backend.
"""
