"""The basics of the package, shared by both programs: layout, errors, conditions, histograms, quantities, crash traces,
golden requests, syntax trees.

May import nothing else of `repository`. All other packages of `repository` import this one, and so do `serving` and
`dashboard`.
"""
