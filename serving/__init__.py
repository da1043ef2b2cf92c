"""Slipway's inference server: Triton's protocols and model repository, in Python.

`frontends -> server -> models -> scheduling -> execution -> backends`: a request passes these rooms once on its way in and once
on its way out. Here lie the programs alone, which put the rooms together: `python -m serving`, whose --help lists the flags of
tritonserver that it takes, and `python -m serving.inspect`. Nothing here knows Django.
"""
