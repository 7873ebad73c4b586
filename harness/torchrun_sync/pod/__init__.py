"""Code that runs in pods, packed by harness.torchrun_sync.bundle: standard library only, Python 3.9+."""
