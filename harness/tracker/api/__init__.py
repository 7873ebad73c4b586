"""API routes, request and response types, and helpers for reading and writing them."""
