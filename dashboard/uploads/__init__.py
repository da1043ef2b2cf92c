"""From files in a browser to a published version: received in chunks (services), inspected (inspection), reviewed (review),
published (publication), each step a move in `states`; and the bundled examples, which go the same way. It imports `versions`
and what is below. Its jobs are named in `settings.JOB_KINDS`; the overview lists what is open, `watch` recovers and expires,
and `up` publishes the examples."""
