"""Data drift: whether the inputs and outputs of a model still look as they did in a reference.

Jobs compare each window of captured requests with the reference, column by column, by the tests of scipy. The rooms `shared`,
`models`, `access`, `web`, `jobs`, `catalog` and `captures` are below it.
"""
