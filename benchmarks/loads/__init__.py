"""Load generators: requests as bytes, wrk and h2load for closed loops, and Slipway's own open loop. None starts a server."""
