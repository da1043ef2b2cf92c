"""The server's figures: Prometheus text, and the live feed that dashboards subscribe to.

May import `frontends.http1`, telemetry, resources and `serving.server`. Its parts are made and called
by `frontends.metrics_server`.
"""
