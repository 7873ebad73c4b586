"""Apply the objects of a launch."""

from __future__ import annotations

from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.core.retries import reason_of


def apply(kube: Kube, document: Object) -> Object:
    """Apply an object of a launch. Raises HarnessError, cause launch.rejected."""
    name = f"{document['kind']} {document['metadata']['name']}"
    try:
        return kube.apply(document)
    except ApiException as error:
        raise HarnessError(
            f"The API server refused {name} with {reason_of(error)}",
            hint="launch/ in the bundle has what was applied",
            cause="launch.rejected",
        ) from None
