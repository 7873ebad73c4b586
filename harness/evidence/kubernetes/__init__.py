"""Interpret recorded objects and messages of Kubernetes."""
