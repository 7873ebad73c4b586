"""The kinds of workloads, which implement the protocol in the module `base`."""
