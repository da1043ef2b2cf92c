"""Batch jobs: every row of a file goes through a model that serves, and comes back in a file of the same format.

`services` receives files, checks them and starts jobs; `running` is the job; `mapping` says which columns fill which inputs;
`sources` reads folders and buckets that an administrator allows. The room imports `uploads` and the rooms below, and its own
rooms `formats` and `sending`. `watch` removes old batch jobs."""
