"""A Kubernetes controller for torchrun: TorchrunQueue and TorchrunJob, `torchrun.ai/v1alpha1`.

`desired` decides in pure functions; `operator` wakes it by events and carries out what it decided.
"""
