"""Repository agents: what looks at a model's files before it loads.

May import `repository.core`. Validation asks the table whether a configuration's agents are right, and the server asks it to
approve a model; a new agent is one module here and one line in the table.
"""
