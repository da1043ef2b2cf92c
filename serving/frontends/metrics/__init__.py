"""The server's metrics as Prometheus text, and the live feed for dashboards.

May import `frontends.http1`, telemetry, resources and `serving.server`. `frontends.metrics_server` creates and calls its parts.
"""
