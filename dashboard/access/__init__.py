"""Actors, rights, sessions and the audit trail. The room imports `shared` and `models`. Every service, page, REST endpoint and
WebSocket checks rights here. Accounts and tokens are in `accounts`."""
