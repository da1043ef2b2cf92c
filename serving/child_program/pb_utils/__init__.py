"""Triton's API for Python models: what a model.py imports as `triton_python_backend_utils`, with its classes and functions.

It imports serving.child_program.link, serving.backends.channel, the standard library and numpy; torch where a tensor lies on a
GPU. Models call it, and serving.child_program.python_stub, which makes the requests that `execute` is given.
"""
