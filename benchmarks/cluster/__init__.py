"""`make cluster-trial`: deploy/kubernetes in a small real cluster."""
