"""Tools for handlers beside BaseHandler: answers in several parts, micro-batches, timers. It imports only `ts`."""
