"""What every part of the package needs and both programs agree on: layout, errors, conditions, histograms, quantities,
crash traces, golden requests, syntax trees.

May import nothing of the package. Everything else in it calls it, and so do `serving` and `dashboard`.
"""
