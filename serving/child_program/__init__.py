"""The child process that runs a model's user code, or a backend that was asked to live apart from the server.

__main__.py          bootstrap: dies with its parent, takes the socket, serves it
channel.py           control messages over a socket, file descriptors with them      (both sides)
server_link.py       the child's own calls to the server
segments.py          tensors in sealed shared memory                                  (both sides)
loop.py              initialize, execute, finalize; what a servant is
pacing.py            holds senders back while clients do not take what they have sent
event_loop.py        where a model's coroutines run
tensors.py           the rows that describe tensors in a segment, and V2 datatypes
python_servant.py    Triton's TritonPythonModel; its API: triton_python_backend_utils.py, pb_*.py, model_config.py, dlpack.py
backend_servant.py   any other backend, for `slipway.isolation: process`

Except for backend_servant, everything here needs only the standard library and numpy: a model may bring its own Python.

Messages are JSON objects; `op` says which. The parent speaks first and waits for the answer:
    initialize {servant, ...}                        ready {asks} | failed {message, code}
    complete_config {...}                            completed {config} | failed {message, code}
    execute {segment, fresh, dropped, freed, requests}   result {segment, fresh, dropped, responses} | failed {message, code}
    finalize {}                                      finalized {}
On a second socket the child speaks first, at any time (server_link.py; calls.py at the server). An answer has the
question's `id` and `final`, and an `error` [code, text] in place of its value; tensors come in a segment that is used once:
    response {key, final, outputs | error}           of a decoupled model, or `later` than its batch; no answer
    release {key}                                    the request will come again; no answer
    cancelled {key}                                  value
    infer {model, version, inputs, for, trace, ...}  outputs, as often as the other model responds
    cancel {ask, waits}                              no answer
    load {model, config, files}  unload {model, dependents}  ready {model, version}                          value
    metric_family {name, description, kind}  metric {number, family, labels, buckets}  metric_value {number}  value
    metric_change {number, how, value}  metric_deleted {number}  metric_family_deleted {name}          no answer
There the server speaks by itself too; it asks a model that `asks`, and tells what a client has taken where `requests` have a
window (pacing.py):
    is_ready {}                                      is_ready {value | error}
    taken {key, size}                                no answer
"""
