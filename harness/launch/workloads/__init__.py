"""The kinds of workloads. They implement the protocol in the module `base`."""
