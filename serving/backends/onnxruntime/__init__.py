"""The ONNX Runtime backend, and the reader of ONNX files, which needs no framework.

It imports serving.backends.base, serving.core, serving.extensions and onnxruntime. The table of backends names the backend, and
serving.inspection reads files with onnx_file.
"""
