"""Traces of sampled requests: settings, files in Triton's format, and spans for OpenTelemetry.

This package may import `cli` and `core`. `serving.server` passes each client request to TraceFile and OpenTelemetryTrace. They
add an observer to sampled requests, which records steps, executions and answers. Frontends report when the answer is sent.
"""
