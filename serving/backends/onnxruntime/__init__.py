"""The ONNX Runtime backend, and what is read of an ONNX file without a framework.

It imports serving.backends.base, serving.core and serving.extensions, and onnxruntime. The table of backends makes it;
serving.inspection reads files with onnx_file.
"""
