"""Searches for a better configuration of a version: a job tries one after the other, each on a server of its own, and
measures the best one and the present one again in turn. A person applies it, directly or as a canary. The room imports
`measurements`, `uploads` and `rollouts`. Only `overview` and the programs may import it."""
