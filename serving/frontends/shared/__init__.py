"""What the transports and protocols of both frontends share: who may call, what a client may send, work on other threads.

May import core, cli and resources, and no other room of the frontends. Called by every room of the frontends.
"""
