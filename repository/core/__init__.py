"""The basics of the package, shared by both programs: layout, errors, conditions, histograms, quantities, crash traces,
golden requests, syntax trees.

May import nothing of the package. All other rooms of it import it, and so do `serving` and `dashboard`.
"""
