"""Randomly generated faults, and an oracle that checks their verdicts without the judges."""
