"""The kinds of workloads, one module each, behind the protocol of `base`."""
