"""Tools for handlers in addition to BaseHandler: answers in several parts, micro-batches, timers. It imports only `ts`."""
