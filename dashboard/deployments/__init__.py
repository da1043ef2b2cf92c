"""Deployments: a release reaches the servers of an environment one group after another, with REST. The room imports
`examples`, `fleet` and the rooms below. `watch` calls `advance`; `servers.wanted` reads what a reached server should serve."""
