"""Interpret recorded Kubernetes objects and messages."""
