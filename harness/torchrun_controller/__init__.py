"""A Kubernetes controller for TorchrunQueues and TorchrunJobs (`torchrun.ai/v1alpha1`).

The pure functions in `decide` compute an object's status and the actions to take. `runtime` watches the
cluster, calls these functions and carries out the actions.
"""
