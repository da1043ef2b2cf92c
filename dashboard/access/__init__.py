"""Actors, rights, sessions, the audit trail, and whether this installation is in control. The room imports `shared` and
`models`. Every service, page, REST endpoint and WebSocket checks rights here. Accounts and tokens are in `accounts`."""
