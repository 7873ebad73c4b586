"""The folder of bundles: list, find, keep and remove them."""
