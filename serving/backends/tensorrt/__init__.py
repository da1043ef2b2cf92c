"""The TensorRT backend, which runs plans on a GPU.

It imports serving.backends.base, serving.core, serving.backends.pytorch.tensors and, where it is installed, tensorrt. The table
of backends makes it; serving.inspection asks it whether TensorRT is installed.
"""
