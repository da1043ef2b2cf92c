"""The models of a server: loading, waking and unloading their versions, and choosing the one that answers a request.

May import every room below (`configuration`, `repositories`, `scheduling`, `execution`, `telemetry`, `resources`); none of the
frontends. `serving.server` calls ModelRepositoryManager, which assembles the rest, and the Models that it resolves.
"""
