"""Derive a job's or queue's status, and the actions to take, from a snapshot. These modules do no I/O."""
