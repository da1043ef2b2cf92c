"""Alerts: conditions that people should know of, who is told, and how, with pages and REST. The room imports `objectives`,
`rollouts`, `deployments`, `drift`, `uploads.sources` and the rooms below. `watch` evaluates and sends; if it is silent, the
worker does.

table      the alerts that exist, a line each; `finders`, `machine` and `rules` find what they are about in `facts`
life       the states of an alert, as pure functions; `services` evaluates, acknowledges and mutes
switches   turns default alerts off and on, for the installation or for one model
outbox     messages to be sent: made once, claimed by one process, tried again; `tasks` sends them in the worker
channels   the ways to tell people; `formats` has what each of them is sent, and `posting` connects
"""
