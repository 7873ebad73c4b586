"""Install the recorder when Python starts in a rank's container. Python imports this file as `sitecustomize`.

The harness mounts it in a folder at the front of PYTHONPATH (harness/launch/mounts/recorder.py). This module
wraps the Pluto client with the recorder, restores sys.path, and runs the image's own sitecustomize. It must
not stop or alter the program that Python runs. This module uses only the standard library, and supports
Python 3.9 and later.
"""

from __future__ import annotations

import os
import sys
from importlib import util
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _prepare() -> None:
    try:
        from _harness_recorder.recorder import hooks

        hooks.install()
    except Exception as error:
        message = f"[harness] the recorder around Pluto's client was not installed: {error!r}\n"
        os.write(2, message.encode())


def _run_the_image_s_own() -> None:
    """Run the sitecustomize module that this one shadows. Its exceptions propagate to `site`."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_prepare()
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
_run_the_image_s_own()
