"""The TensorRT backend, which runs plans on a GPU.

It imports serving.backends.base, serving.core, serving.backends.pytorch.tensors and, if it is installed, tensorrt. The table of
backends names this backend. serving.inspection asks it whether TensorRT is installed.
"""
