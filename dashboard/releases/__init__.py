"""What a model is wanted to serve, what it serves, and the way back: releases, the facts of their lives, and the managed
repository that the wanted one lies in. It imports `servers`, `access` and what is below; the catalog and all rooms above ask
here what is live. Nothing else writes config.pbtxt, a release, or a fact of its life."""
