"""The command line of `python -m serving`: tritonserver's flags, their values, and the TLS files that they name.

May import `core` and the package `repository`. `serving.program` parses (`command_line`, values by `option_values`);
every other room reads the frozen Options (`options`).
"""
