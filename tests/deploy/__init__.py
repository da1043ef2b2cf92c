"""deploy/kubernetes and deploy/kserve: what they say fits the server, and Kubernetes takes it."""
