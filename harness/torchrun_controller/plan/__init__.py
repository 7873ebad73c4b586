"""Distribute the GPUs of a job across nodes. These modules do no I/O."""
