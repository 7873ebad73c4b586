"""Decide the status of a job or queue, and the actions to take, from a snapshot. These modules do no I/O."""
