"""Soak: many launches on one cluster, a ledger of every one, and whether anything leaked."""
