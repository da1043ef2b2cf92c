"""The parts that all transports and protocols share: authorisation, limits of a client, worker threads.

May import core, cli and resources, and no other room of the frontends.
"""
