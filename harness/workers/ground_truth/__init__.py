"""The ground truth: what a rank logs, recorded in its own log.

    from ground_truth import Recorder  # in a worker, before the Pluto client is initialised

The recorder that wraps the client, and the harness, import the individual modules instead, because importing
frame_writer duplicates stdout and reads the worker's files.
"""

if __name__ == "ground_truth":
    from .frame_writer import STDERR, STDOUT, Recorder

    __all__ = ["STDERR", "STDOUT", "Recorder"]
