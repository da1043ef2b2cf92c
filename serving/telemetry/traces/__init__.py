"""Traces of sampled requests: settings, files in Triton's format, and spans for OpenTelemetry.

May import `cli` and `core`. `serving.server` passes each client request to TraceFile and OpenTelemetryTrace, which add an
observer to sampled requests. The observer records steps, executions and answers. Frontends report when the answer is sent.
"""
