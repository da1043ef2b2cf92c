"""Models on other servers as arms of a rollout: the list of allowed servers, a client for each protocol, checks of answers.

`protocols.py` lists the clients, each a `RemoteProtocol` in its own module. A `RemoteModel` sends requests through one of them,
and takes requests like a local model. May import `core`, `extensions` and `resources`.
"""
