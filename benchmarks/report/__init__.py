"""Writes docs/benchmarks.md and its pictures from the results of a comparison. This package measures nothing."""
