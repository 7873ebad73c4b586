"""Code that runs in pods, packed by harness.torchrun_sync.pod_script.

It uses only the standard library of Python 3.9 or later.
"""
