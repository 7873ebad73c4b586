"""What pods keep on disk, from what a node says."""

from harness.provision.kind.pod_disk_use import sizes

SAID = """\
KEY                                                                     SIZE     INODES
6c35f1d2f4c1                                                            64424509440 13
sha256:e4a997e79f5a630dc9c46e876f90f581e800151ced21d02fd8991618d8368609 4096     1
160448\ta1e0b56d-4dd2-4b82-9d12-e19ed1080320/volumes/kubernetes.io~empty-dir
8544\te2e-1_worker-0_a1e0b56d-4dd2-4b82-9d12-e19ed1080320
"""


def test_container_logs_and_volumes_are_told_apart():
    """Contract: bytes by container id; logs and emptyDirs of one pod add up under its uid."""
    found = sizes(SAID.splitlines())
    assert found["6c35f1d2f4c1"] == 60 * 2**30
    assert found["a1e0b56d-4dd2-4b82-9d12-e19ed1080320"] == 160448 + 8544


def test_a_node_that_says_nothing():
    assert sizes([]) == {}
