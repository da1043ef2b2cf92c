"""Repository agents, which check a model's files before it loads.

May import `repository.core`. Validation checks a configuration's agents by the table, and the server has them approve a model;
a new agent is one module here and one line in the table.
"""
