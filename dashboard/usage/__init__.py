"""Who uses what: it reads the server's usage log into the database, shows use by model, token, person, group and day with its
price, and keeps quotas, which the server enforces."""
