"""Accounts, sign-in, API tokens, `auth.json` for the inference server, and the pages of the audit trail. The room imports
`servers` and the rooms below. The settings name its authentication classes. The catalog calls it to remove the names of deleted
models from tokens."""
