"""The parts that every room may use: errors with a sentence for people, the choices of the database's fields, the environment,
heartbeats and log files of processes. It imports no room of the dashboard and no model. Every room calls it."""
