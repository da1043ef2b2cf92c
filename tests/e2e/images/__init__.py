"""The images of deploy/Dockerfile, run by runc as a kubelet runs them, by `make images-test` after `make images`."""
