"""Accept a GPU node, or many: is it what it should be, does it compute right, is it as fast as it should be?

Runs in a pod, with the standard library and PyTorch alone (Python 3.9 and PyTorch 2.0, and later).

    python -m acceptance.run_all_tests --quick      one node: environment, compute, training, local DDP
    torchrun … -m acceptance.ddp_tests              many nodes: every collective, right and fast enough
"""
