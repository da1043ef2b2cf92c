"""What the API of a Kubernetes cluster says of an environment's servers: its pods and why one is not ready, who decides the
number of replicas, and why it changed; and the one thing that is changed there, that number. The room imports `access`,
`models`, `servers` and `shared`. `fleet` finds servers by it and shows it; `watch` looks."""
