"""What every room may use: the errors that a person is told, the vocabularies of the database, the environment, heartbeats
and log files of processes. It imports no room of the dashboard and no model. Every room calls it."""
