"""The base class for all records in the evidence bundle, and the type for metric values."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


Value = Annotated[float, BeforeValidator(float), PlainSerializer(_number)]
"""A metric value as a float. In JSON, non-finite values are the strings NaN, Infinity and -Infinity."""


class Record(BaseModel):
    """The base class of all records.

    A record is immutable, and unknown fields are ignored when it is read.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")
