"""The ONNX Runtime backend, and the reader of ONNX files, which needs no framework.

It imports serving.backends.base, serving.core and serving.extensions, and onnxruntime. The table of backends makes it;
serving.inspection reads files with onnx_file.
"""
