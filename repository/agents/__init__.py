"""Repository agents, which check a model's files before it loads.

It may import `repository.core`. Validation looks up a configuration's agents in the table, and the server asks each agent to
approve a model. A new agent is one module in this package and one line in the table.
"""
