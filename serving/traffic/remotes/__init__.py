"""Models on other servers as arms of a rollout: which servers may be called, how each protocol asks them, what they may answer.

Every protocol is a `RemoteProtocol` in a module of its own (`protocols.py` names them), and `remote_model.py` makes any of them
an arm that takes requests as a model here does. May import `core`, `extensions` and `resources`.
"""
