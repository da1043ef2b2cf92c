"""The PyTorch backend: TorchScript, torch.export and AOTInductor, and the reader of their archives, which needs no torch.

It imports serving.backends.base, serving.core and torch. The table of backends names the backend. serving.inspection reads
files with archive and torch_signature. The TensorRT backend uses the module tensors.
"""
