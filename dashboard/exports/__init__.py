"""A release as an artefact in an OCI registry: `artifact` says what is in it, `sending` is the job that sends it. Uploads fetch
it again (`uploads.sources.registry`). It may import `uploads` and the rooms before that. The command `registry` calls it."""
