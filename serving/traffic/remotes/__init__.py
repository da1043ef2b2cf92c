"""Models on other servers as arms of a rollout: the list of allowed servers, a client for each protocol, checks of answers.

Every protocol is a `RemoteProtocol` in a module of its own (`protocols.py` lists them). `remote_model.py` makes any protocol an
arm that takes requests like a model of this server. May import `core`, `extensions` and `resources`.
"""
