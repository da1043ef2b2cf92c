"""Slipway's inference server: Triton's protocols and model repository, in Python.

`frontends -> server -> model_repository_manager -> model_lifecycle -> model -> scheduling -> instance -> backends`.
It knows nothing of Django. `python -m serving --help` lists tritonserver's flags that it takes.
"""

__version__ = "0.1.0"
