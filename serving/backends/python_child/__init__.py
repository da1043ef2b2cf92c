"""The child process that runs a model's user code, or a backend that was asked to live apart from the server.

__main__.py          bootstrap: dies with its parent, takes the socket, serves it
channel.py           control messages over a socket, file descriptors with them      (both sides)
segments.py          tensors in sealed shared memory                                  (both sides)
loop.py              initialize, execute, finalize; what a servant is
tensors.py           the rows that describe tensors in a segment, and V2 datatypes
python_servant.py    Triton's TritonPythonModel; its API: triton_python_backend_utils.py, pb_*.py, model_config.py, dlpack.py
backend_servant.py   any other backend, for `slipway.isolation: process`

Except for backend_servant, everything here needs only the standard library and numpy: a model may bring its own Python.

Messages are JSON objects; `op` says which. The parent speaks first and waits for the answer:
    initialize {servant, ...}                        ready {} | failed {message, code}
    complete_config {...}                            completed {config} | failed {message, code}
    execute {segment, fresh, dropped, freed, requests}   result {segment, fresh, dropped, responses} | failed {message, code}
    finalize {}                                      finalized {}
Before its answer to `execute` the child may ask in turn, and gets its answer before anything else:
    cancelled {request}                              answer {value}
Other questions of that kind (an inference on another model, a metric) have their place there: `QUESTIONS` in
serving/backends/process_instance.py.
"""
