"""What runs in a pod. Standard library alone, Python 3.9 or later; harness.torchrun_sync.bundle brings it."""
