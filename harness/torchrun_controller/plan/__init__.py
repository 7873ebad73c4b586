"""Distribute a job's GPUs across nodes. These modules do no I/O."""
