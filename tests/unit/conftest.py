"""The environment of unit tests: none of the harness's settings is set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.reference.settings import variables
from harness.settings import Settings

FOLDERS = {"cache_dir", "state_dir"}
"""Settings that change where files are, and nothing else."""
VARIABLES = [
    name for key, of in Settings.model_fields.items() if key not in FOLDERS for name in variables(key, of)
]


@pytest.fixture(autouse=True, scope="module")
def no_settings() -> Iterator[None]:
    """Remove the settings of whoever runs the tests, such as KEEP_CLUSTER, from the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        yield
