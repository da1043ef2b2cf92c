"""Slipway's inference server: Triton's protocols and model repository, in Python.

`frontends -> server -> models -> scheduling -> execution -> backends`: a request passes these packages once on its way in and
once on its way out. The top level contains only the programs: `python -m serving`, whose --help lists the flags, and
`python -m serving.inspect`. Nothing in the package depends on Django.
"""
