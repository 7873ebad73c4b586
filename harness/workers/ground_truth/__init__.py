"""Record the ground truth, which is every point that a rank logs, in the rank's own log.

    from ground_truth import Recorder  # in a worker, before the Pluto client is initialised

The harness and the recorder that wraps the client import the individual modules instead. The reason is that
importing point_recorder duplicates stdout and reads the worker's files.
"""

if __name__ == "ground_truth":
    from .point_recorder import STDERR, STDOUT, Recorder

    __all__ = ["STDERR", "STDOUT", "Recorder"]
