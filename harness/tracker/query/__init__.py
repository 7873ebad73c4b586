"""Queries: all reads from the database."""
