"""Traces of sampled requests: settings, files in Triton's form, and spans for OpenTelemetry.

May import `cli` and `core`. `serving.server` shows each request of a client to TraceFile and OpenTelemetryTrace. They add an
observer to sampled requests, which sees steps, executions and answers; the frontends tell it when the answer is sent.
"""
