"""The difference of two bundles."""
