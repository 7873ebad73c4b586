"""Every fault of harness/faults/cases gets the verdict, cause and ranks that its file says, and is undone.

Faults run beside each other where they can (harness/faults/catalogue_run.py).
Each test waits for its own.
Faults that `make test` leaves out are marked nightly (docs/tests.md). The ledger and the bundles are in
runs/faults-*/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import get_args

import pytest
from fault_matrix import each, faults_of, is_right, started

from harness.faults.catalogue_run import Matrix
from harness.faults.fault_file import Target
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.faults
FAULTS = faults_of(*(set(get_args(Target)) - {"network", "acceptance", "training"}))
"""Those three have tests of their own."""
ALONE_BETWEEN_CONTROLS = 3
"""Faults that run alone between two controls. `make faults` has a control after each of them."""


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """The faults of the selected tests, all started at once."""
    parallel = int(os.environ.get("HARNESS_FAULTS_PARALLEL", "2"))
    every = ALONE_BETWEEN_CONTROLS
    with started(request, cluster, harness_settings, parallel, alone_between_controls=every) as matrix:
        yield matrix


@each(FAULTS)
def test_a_fault_gets_its_verdict_and_is_undone(
    matrix: Matrix, name: str, record_property: Callable[[str, object], None]
) -> None:
    is_right(matrix, name, record_property)
