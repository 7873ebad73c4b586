"""Labels, annotations and names that all kinds of workloads share."""

NONCE_LABEL = "pluto-e2e-harness/nonce"
RANKS_PER_POD = "pluto-e2e-harness/ranks-per-pod"
"""Annotation of a launch's namespace, for `harness status`."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NETCHECK = "pluto-e2e-harness/netcheck"
"""Annotation of an Indexed Job. "alone" means that it only runs netcheck, and logs nothing with Pluto."""
ACCEPT = "pluto-e2e-harness/accept"
"""Annotation of a workload with only acceptance tests: "nodes" on a DaemonSet, "ddp" on a StatefulSet."""
RESTARTS = "pluto-e2e-harness/restarts"
"""Annotation of a workload: how often each rank may be restarted for any reason. More restarts are a FAIL."""
TRAINING = "pluto-e2e-harness/training"
"""Annotation of a printed StatefulSet or Indexed Job. "true" means that its checkpoints are audited."""
EXPECT_RANKS = "pluto-e2e-harness/expect-ranks"
"""Annotation of a workload, or label of a konduktor job: the ranks that log ("0", "0,4", "0-3").

The other ranks must end successfully and log nothing. A label cannot contain commas, so it uses "0_4".
"""
LOCAL_IMAGE = "pluto-multinode-test:local"
"""A placeholder for the worker image that the harness builds from the Dockerfile."""
