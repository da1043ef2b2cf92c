"""From files in a browser to a published version: received in chunks, inspected, reviewed, published; and the bundled
examples, which go the same way. It imports `versions` and what is below. Its jobs are named in `settings.JOB_KINDS`; the
overview lists what is open, `watch` finishes and expires, and `up` publishes the examples."""
