"""Accounts, sign-in, API tokens, `auth.json` for the inference server, and the pages of the audit trail. The room imports
`servers` and the rooms below. The settings name its classes for authentication; the catalog calls it when a model that tokens
name is deleted."""
