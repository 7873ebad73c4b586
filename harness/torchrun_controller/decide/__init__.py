"""Derive the status of a job or queue, and the actions to take, from a snapshot of its objects.

These modules perform no I/O.
"""
