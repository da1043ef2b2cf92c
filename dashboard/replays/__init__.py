"""Replays: captured requests are sent to a version again, on a server of its own, and its answers are compared with the
captured ones. `running` counts window after window; `sending` and `encoding` speak with the server. The gate of a model, which
a version must pass before it goes live, is in `releases`. The room imports `drift`, `measurements` and the rooms below.
"""
