"""Captures: clients' requests with their answers, kept by the inference server for a time, and read by those who may.

`services` starts, stops and deletes captures; the server follows the file that they write. The room imports `configuration`,
`catalog` and the rooms below. `watch` deletes old captures.
"""
