"""Log unusual names, values and steps with the real Pluto client. Not a test: test_client_rules.py runs it.

If Pluto rejects a step, the whole request is lost, so each such step is logged by its own process.
"""

import decimal
import fractions
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = [
    *("loss", "lr/group 0", "a.b-c_d", "perte/é", "损失", "x\ty", "x\n", "\u00a0x", "x" * 400, "é", "~!@#"),
    *("😀/loss", "émile/λ", "a\x7fb"),
]
VALUES: dict[str, Callable[[], Any]] = {
    "int": lambda: 3,
    "float": lambda: 0.1,
    "true": lambda: True,
    "false": lambda: False,
    "none": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "text": lambda: "warm-up",
    "long-text": lambda: "x" * 201,
    "list": lambda: [1, 2, 5],
    "list-empty": lambda: [],
    "list-bool": lambda: [1, True],
    "list-false": lambda: [2.5, False, "x"],
    "list-bool_": lambda: [2.5, np.bool_(False)],
    "tuple": lambda: (1, 2),
    "dict": lambda: {"a": 1},
    "big": lambda: 2**53 + 1,
    "even": lambda: 2**60,
    "float32": lambda: np.float32(0.1),
    "float64": lambda: np.float64(0.1),
    "int64": lambda: np.int64(7),
    "bool_": lambda: np.bool_(True),
    "array-one": lambda: np.array([1.5]),
    "array-two": lambda: np.array([1.5, 2.5]),
    "decimal": lambda: decimal.Decimal("0.5"),
    "fraction": lambda: fractions.Fraction(1, 2),
}
STEPS: dict[str, Any] = {"zero": 0, "whole": 3.0, "true": True, "half": 3.5, "negative": -1, "large": 2**40}
REFUSED = ("half", "negative")


def main(only: str | None) -> None:
    import pluto

    run = pluto.init(name="values")
    if only is not None:
        run.log({f"step/{only}": 1.0}, step=STEPS[only])
        run.finish()
        return
    for index, name in enumerate(NAMES):
        run.log({name: float(index)}, step=1000 + index)
    for label, value in VALUES.items():
        run.log({f"value/{label}": value()}, step=0)
    for label, step in STEPS.items():
        if label not in REFUSED:
            run.log({f"step/{label}": 1.0}, step=step)
    run.finish()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else None
    main(given)
    if given is None:
        for label in REFUSED:
            alone = {**os.environ, "PLUTO_DIR": f"{os.environ['PLUTO_DIR']}-{label}"}
            subprocess.run([sys.executable, __file__, label], env=alone, check=True)
