"""Compare the evidence and verdicts of two bundles, for `harness diff`."""
