"""Tests of the manifests in deploy/: schemas of Kubernetes and of what is installed in it."""
