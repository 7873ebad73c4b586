"""Inject faults into real launches, undo them, and compare each verdict with the expected one.

Each fault is described by a small YAML file in `cases/`. `harness faults` and `pytest -m faults` run the
faults on a real cluster, with launches of a healthy job (controls) between them.
"""
