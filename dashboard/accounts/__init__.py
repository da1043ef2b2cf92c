"""People and programs: accounts, sign-in, API tokens, `auth.json` for the inference server, and the pages of the audit trail.
It imports `servers` and what is below. The settings name its classes for authentication; the catalog calls it when a model
that tokens name is deleted."""
