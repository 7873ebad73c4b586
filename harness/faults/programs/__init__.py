"""Randomly generated training programs in containers, and an oracle that checks their verdicts."""
