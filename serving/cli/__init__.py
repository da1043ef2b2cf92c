"""The command line of `python -m serving`: tritonserver's flags, their values, and the TLS files that they name.

May import `core` and the package `repository`. `serving.program` parses the command line by `command_line`, which converts the
values by `option_values`. Every other room only reads the frozen Options of `options`.
"""
