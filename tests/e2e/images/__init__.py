"""The images of deploy/Dockerfile, run by runc as a kubelet runs them. `make images` builds them, `make images-test` runs these."""
