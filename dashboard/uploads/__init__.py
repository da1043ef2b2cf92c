"""From files in a browser to a published version: received in chunks (services), inspected (inspection), reviewed (review),
published (publication), each step a move in `states`; and the bundled examples, which go the same way. Files that can run
code are refused when they are announced (services), when they have been looked at (inspection) and when they are published
(configuration.needs).

It imports `versions` and what is below. The overview lists what is open, `watch`
recovers and expires, and `up` publishes the examples."""
