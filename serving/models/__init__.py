"""The models of a server: which there are, loading, waking and unloading their versions, and which of them answers a request.

May import every room below (`configuration`, `repositories`, `scheduling`, `execution`, `telemetry`, `resources`); none of the
frontends. `serving.server` calls ModelRepositoryManager, which assembles the rest, and the Models that it resolves.
"""
