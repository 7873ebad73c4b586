"""Compare two bundles."""
