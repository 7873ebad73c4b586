"""Launch the main job with the newest versions of konduktor and Pluto's client, and search for what broke it.

    versions.py [--newest N] [--searches N]

The matrix contains the newest N nightlies of konduktor and the one in its lock, each with the newest N
versions of Pluto's client and the one in its lock. For each failure, `harness bisect` then searches for the
version with which it began. In GitHub Actions, the table and the reports are in the summary of the job. The
exit code is that of the matrix.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HARNESS = Path(sys.executable).with_name("harness")
CLUSTER = "versions"
"""The cluster of all launches, which is deleted at the end. Another one in HARNESS_CLUSTER_NAME is kept."""
KONDUKTOR, CLIENT = "locked,>=0.1.0.dev20260919", "locked,>=0.0.16"
"""Older nightlies lack the option --kubeconfig, which the harness uses, and older clients lose points
(docs/how-to/versions.md)."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--newest", type=int, default=3, help="how many versions of each package")
    parser.add_argument("--searches", type=int, default=3, help="maximum number of searches")
    asked = parser.parse_args()
    own = os.environ.setdefault("HARNESS_CLUSTER_NAME", CLUSTER) == CLUSTER
    command = [HARNESS, "matrix", "--konduktor", KONDUKTOR, "--pluto-ml", CLIENT, "--repeat", "3"]
    command += ["--newest", str(asked.newest), "--keep-cluster", "--json"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        for words in (json.loads(done.stdout)["bisects"] if done.stdout else [])[: asked.searches]:
            subprocess.run([HARNESS, *words[1:], "--keep-cluster"], check=False)
    finally:
        if own:
            subprocess.run([HARNESS, "down"], check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
