"""The basics of the package, shared by both programs: layout, errors, conditions, histograms, quantities, crash traces,
golden requests, syntax trees.

It may import no other package of `repository`. All other packages of `repository` import this one, and so do `serving` and
`dashboard`.
"""
