"""Watches, leases, writes: the controller at work."""
