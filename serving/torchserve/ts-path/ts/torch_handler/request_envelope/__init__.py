"""Service envelopes, in which clients wrap their instances, unwrapped for handlers. They import only `ts` and numpy."""
