"""Labels, annotations and names shared by all kinds of workloads."""

NONCE_LABEL = "pluto-e2e-harness/nonce"
RANKS_PER_POD = "pluto-e2e-harness/ranks-per-pod"
"""Annotation on a launch's namespace: the number of ranks per pod, for `harness status`."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NETCHECK = "pluto-e2e-harness/netcheck"
"""Annotation on an Indexed Job. "alone" means that the job only runs netcheck and logs nothing to Pluto."""
ACCEPT = "pluto-e2e-harness/accept"
"""Annotation on a workload that only runs acceptance tests.

"nodes" is for a DaemonSet, and "ddp" for a StatefulSet.
"""
RESTARTS = "pluto-e2e-harness/restarts"
"""Annotation on a workload: the permitted number of restarts per rank, for any reason.

With more restarts, the verdict is FAIL.
"""
TRAINING = "pluto-e2e-harness/training"
"""Annotation on a training printed by --print-manifests. "true" means that its checkpoints are audited."""
EXPECT_RANKS = "pluto-e2e-harness/expect-ranks"
"""Annotation on a workload, or label of a konduktor job: the ranks that must log ("0", "0,4", "0-3").

The other ranks must succeed and log nothing. A label cannot contain commas, so its form is "0_4".
"""
LOCAL_IMAGE = "pluto-multinode-test:local"
"""The placeholder for the worker image that the harness builds from the Dockerfile."""
