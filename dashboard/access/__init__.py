"""Who acts, what they may do, and what is written down of it: rights, sessions and the audit trail. It imports `shared` and
`models`. Every service, page, REST endpoint and WebSocket asks here; accounts and tokens themselves are in `accounts`."""
