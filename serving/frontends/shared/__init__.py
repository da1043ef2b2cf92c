"""The parts that all transports and protocols share: authorisation, limits of a client, work on other threads.

May import core, cli and resources, and no other room of the frontends. Called by every room of the frontends.
"""
