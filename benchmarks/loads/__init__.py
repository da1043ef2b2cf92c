"""What asks: requests as bytes, wrk and h2load for closed loops, and an open loop of our own. Nothing here starts a server."""
