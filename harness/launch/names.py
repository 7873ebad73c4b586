"""Labels, names and texts that every kind of workload shares."""

NONCE_LABEL = "pluto-e2e-harness/nonce"
RANKS_PER_POD = "pluto-e2e-harness/ranks-per-pod"
"""Annotation of a launch's namespace, for `harness status`."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NETCHECK = "pluto-e2e-harness/netcheck"
"""Annotation of an Indexed Job. "alone": it runs netcheck and nothing else, and logs nothing with Pluto."""
ACCEPT = "pluto-e2e-harness/accept"
"""Annotation. "nodes" of a DaemonSet, "ddp" of a StatefulSet: it runs acceptance tests and nothing else."""
RESTARTS = "pluto-e2e-harness/restarts"
"""Annotation of a workload: how often each rank may run again, whatever ended it. More is a FAIL."""
TRAINING = "pluto-e2e-harness/training"
"""Annotation of a printed StatefulSet or Indexed Job. "true": its checkpoints are audited and judged."""
EXPECT_RANKS = "pluto-e2e-harness/expect-ranks"
"""Annotation of a workload, or label of a konduktor job: the ranks that log ("0", "0,4", "0-3").

The others must run to their end and log nothing. A label has no commas: "0_4".
"""
LOCAL_IMAGE = "pluto-multinode-test:local"
"""The image that stands for the worker image that the harness builds from the Dockerfile."""
