"""Measures servers in turns under the same load on the same model, and writes the results to docs/benchmarks.md.

`python -m benchmarks.comparison peers` and `triton` run servers. `page` writes the page again from their results.
"""
