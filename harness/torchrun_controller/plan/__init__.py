"""Distribute the GPUs of a job over nodes. These modules do no I/O."""
