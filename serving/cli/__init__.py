"""The command line of `python -m serving`: tritonserver's flags, their values, and the TLS files that they name.

May import `core` and the package `repository`. `serving.program` calls `command_line`, which converts the values with
`option_values`. Every other room only reads the frozen Options of `options`.
"""
