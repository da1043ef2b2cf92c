"""Triton's API for Python models: the classes and functions of the module `triton_python_backend_utils`.

It imports serving.child_program.link, serving.backends.channel, the standard library, numpy and, for tensors on a GPU, torch.
Models use it, and so does serving.child_program.python_stub, which makes the requests for `execute`.
"""
