"""Distribute a job's GPUs across nodes. These modules perform no I/O."""
