"""Programs that run in a pod, sent by harness.torchrun_sync.bundle: standard library only, Python 3.9+."""
