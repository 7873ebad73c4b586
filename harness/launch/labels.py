"""Labels, annotations and names shared by all kinds of workloads."""

NONCE_LABEL = "pluto-e2e-harness/nonce"
RANKS_PER_POD = "pluto-e2e-harness/ranks-per-pod"
"""Annotation on a launch's namespace. Its value is the number of ranks per pod, which `harness status`
needs."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NETCHECK = "pluto-e2e-harness/netcheck"
"""Annotation on an Indexed Job. The value "alone" means that the job only runs netcheck and logs nothing to
Pluto."""
ACCEPT = "pluto-e2e-harness/accept"
"""Annotation on a workload that only runs acceptance tests.

Its value is "nodes" on a DaemonSet, and "ddp" on a StatefulSet.
"""
RESTARTS = "pluto-e2e-harness/restarts"
"""Annotation on a workload. Its value is the number of times that each rank may restart, for any reason.

If a rank restarts more often, the verdict is FAIL.
"""
TRAINING = "pluto-e2e-harness/training"
"""Annotation on the workload of a training job that --print-manifests printed. The value "true" means that
its checkpoints are audited."""
EXPECT_RANKS = "pluto-e2e-harness/expect-ranks"
"""Annotation on a workload, or label on a konduktor job. Its value lists the ranks that must log, as in "0",
"0,4" or "0-3".

The other ranks must succeed and log nothing. A label cannot contain commas, so "0,4" is written as "0_4"
there.
"""
LOCAL_IMAGE = "pluto-multinode-test:local"
"""The image name in a workload's file that stands for the worker image, which the harness builds from the
Dockerfile."""
