"""Slipway's inference server: Triton's protocols and model repository, in Python.

`frontends -> server -> models -> scheduling -> execution -> backends`: a request passes these rooms once on its way in and once
on its way out. The package itself holds only the programs, which put the rooms together: `python -m serving`, whose --help
lists the flags, and `python -m serving.inspect`. Nothing in the package depends on Django.
"""
