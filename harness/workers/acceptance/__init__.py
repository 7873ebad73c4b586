"""Acceptance tests for GPU nodes: configuration, correctness and speed.

The tests run in a pod. They need only Python 3.9 and PyTorch 2.0, or later versions.

    python -m acceptance.run_all_tests --quick      one node: environment, compute, training, local DDP
    torchrun … -m acceptance.ddp_tests              many nodes: correctness and speed of every collective
"""
