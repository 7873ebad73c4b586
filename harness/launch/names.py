"""Labels and names that every kind of workload shares."""

NONCE_LABEL = "pluto-e2e-harness/nonce"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LOCAL_IMAGE = "pluto-multinode-test:local"
"""The image that stands for the worker image that the harness builds from the Dockerfile."""
