"""Faults: injected into real launches, always undone, each with the verdict that it must get.

A fault is a small YAML file in `cases/`. `harness faults` and `pytest -m faults` run the faults on a real
cluster, with healthy controls between them.
"""
