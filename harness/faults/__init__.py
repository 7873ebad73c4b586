"""Inject faults into real launches, undo them, and compare each verdict with the expected one.

A fault is a small YAML file in `cases/`. `harness faults` and `pytest -m faults` run the faults on a real
cluster, with healthy controls between them.
"""
