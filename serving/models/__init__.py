"""The models of a server: loading, waking and unloading their versions, and choosing the version that answers a request.

May import every room below (`configuration`, `repositories`, `scheduling`, `execution`, `telemetry`, `resources`), but no
frontend. `serving.server` calls ModelRepositoryManager, which assembles the other parts, and the Models that the manager finds.
"""
