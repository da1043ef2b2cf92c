"""Traces of sampled requests: settings, files in Triton's form, and spans for OpenTelemetry.

May import `cli` and `core`. `serving.server` asks TraceFile and OpenTelemetryTrace about each request of a client; what they
attach to it observes its steps, executions and answers, and the frontends tell it when the answer is sent.
"""
