"""If a node lacks an image, the verdict lists the images that the nodes have instead."""

from typing import Any

import bundles
import pytest
from bundles import CONTAINER, stuck

NEVER = ("ErrImageNeverPull", 'Container image "worker:9" is not present with pull policy of Never')
BACK_OFF = ("ImagePullBackOff", 'Back-off pulling image "worker:9": failed to resolve: not found')


def starting(
    state: tuple[str, str],
    images: dict[str, list[str]],
    *,
    image: str = "worker:9",
    policy: str = "IfNotPresent",
) -> bundles.Job:
    """Return a job whose pods wait for their image, on nodes that report these images."""
    job = stuck(bundles.healthy())
    job.truth, job.logs, job.runs, job.attachments, job.points = {}, {}, [], [], []
    for index in range(2):
        job.pod(index, 9, "Pending", {"waiting": {"reason": state[0], "message": state[1]}})
        pod = job.objects[-1][1].object
        pod["spec"]["containers"] = [{"name": CONTAINER, "image": image, "imagePullPolicy": policy}]
        pod["status"]["containerStatuses"][0]["image"] = image
    for name in ("e2e-worker1", "e2e-worker2"):
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": [one]} for one in images.get(name, [])],
        }
        job.see("node", 1, {"kind": "Node", "metadata": {"name": name, "uid": name}, "status": status})
    return job


@pytest.mark.parametrize("state", [NEVER, BACK_OFF])
def test_other_tags_that_the_nodes_have_are_named(judged: Any, state: tuple[str, str]) -> None:
    tags = ["docker.io/library/worker:1", "docker.io/library/worker:2", "docker.io/library/other:9"]
    verdict = judged(starting(state, {"e2e-worker1": tags, "e2e-worker2": tags[:1]}))
    assert verdict.cause in {"image.not_found", "image.pull_failed"}
    assert "The nodes have this image only with other tags: worker:1 and worker:2" in verdict.explanation
    assert "other:9" not in verdict.explanation
    assert any("use a tag that the nodes have" in step for step in verdict.next)


def test_many_tags_are_counted(judged: Any) -> None:
    tags = [f"worker:{number}" for number in range(8)]
    verdict = judged(starting(NEVER, {"e2e-worker1": tags}))
    assert "worker:3, worker:4 and 3 more tags" in verdict.explanation


def test_an_image_that_only_other_nodes_have(judged: Any) -> None:
    verdict = judged(starting(NEVER, {"e2e-worker2": ["docker.io/library/worker:9"]}))
    assert "This image is on e2e-worker2, but not on e2e-worker1" in verdict.explanation
    assert any("every node" in step for step in verdict.next)


def test_an_image_in_another_registry_is_named(judged: Any) -> None:
    verdict = judged(starting(NEVER, {"e2e-worker1": ["localhost/worker:9"]}))
    assert (
        "The nodes have localhost/worker:9, which Kubernetes treats as a different image"
        in verdict.explanation
    )


def test_pull_policy_always_ignores_an_image_on_the_node(judged: Any) -> None:
    """Contract: if the pod sets no pull policy, the tag `latest` or a missing tag makes it Always."""
    images = {name: ["docker.io/library/worker:latest"] for name in ("e2e-worker1", "e2e-worker2")}
    verdict = judged(starting(BACK_OFF, images, image="worker", policy="Always"))
    assert (
        "This image is already on e2e-worker1, but is not used, because the pull policy is Always"
        in verdict.explanation
    )
    assert any(
        "imagePullPolicy: IfNotPresent, or use a tag other than latest" in step for step in verdict.next
    )


def test_nothing_is_said_of_nodes_that_report_no_images(judged: Any) -> None:
    verdict = judged(starting(NEVER, {}))
    assert "nodes have" not in verdict.explanation
    assert "pull policy is Always" in judged(starting(BACK_OFF, {}, policy="Always")).explanation
