"""The models of a server: loading, waking and unloading their versions, and choosing the version that answers a request.

This package may import `configuration`, `repositories`, `scheduling`, `execution`, `telemetry` and `resources`, but no
frontend. `serving.server` calls ModelRepositoryManager, which assembles the other parts, and the Models that the manager finds.
"""
