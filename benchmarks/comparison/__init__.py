"""Servers take turns under the same load on the same model: measured, kept, and written to docs/benchmarks.md.

`python -m benchmarks.comparison peers` and `triton` run servers, `page` writes the page anew from what they left.
"""
