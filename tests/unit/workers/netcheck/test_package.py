"""netcheck runs in any image: standard library, Python 3.9, either name. Its causes are a closed set."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.workers import netcheck
from harness.workers.netcheck.finding import CAUSES, STEPS, failed

FOLDER = Path(netcheck.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
DOCUMENT = FOLDER.parents[2] / "docs/reference/networking.md"


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as in a pod: a top-level package on PYTHONPATH."""
    asked = [sys.executable, "-m", "netcheck", *arguments]
    env = {"PYTHONPATH": str(FOLDER.parent), **variables}
    return subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_standard_library_alone(module: Path) -> None:
    """Contract: Python 3.9, relative imports inside; torch and colossalai inside a function alone."""
    tree = ast.parse(module.read_text(), feature_version=(3, 9))
    lazy = {node for of in ast.walk(tree) if isinstance(of, ast.FunctionDef) for node in ast.walk(of)}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            root = name.partition(".")[0]
            assert root in sys.stdlib_module_names or (root in ("torch", "colossalai") and node in lazy), name


def test_every_cause_has_a_step_and_documented_advice() -> None:
    """Contract: the set is closed. The code names no other cause, and names each."""
    code = "".join(path.read_text() for path in MODULES if path.name != "finding.py")
    families = {cause.partition(".")[0] for cause in CAUSES}
    named = set(re.findall(rf'"((?:{"|".join(families)})\.[a-z_]+)"', code))
    built = {f"versions.{name}" for name in ("python", "torch", "nccl")}
    assert named | built == set(CAUSES)
    assert set(CAUSES.values()) <= set(STEPS)
    rows = dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)`.*\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {cause: failed(cause, "").advice for cause in CAUSES}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "0"),
        ("--port", "x"),
        ("--deadline", "-1"),
        ("--peers", ","),
        ("--nodes", "x"),
        ("--what",),
        (),
    ],
)
def test_invalid_arguments_exit_with_code_2_and_usage(arguments: tuple[str, ...]) -> None:
    """Contract: exit code 2 and a usage line. Without a number of ranks there is nothing to check."""
    done = command(*arguments, MASTER_ADDR="a", NODE_RANK="0")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "usage: python -m netcheck" in done.stderr


@pytest.mark.parametrize("name", ["NETCHECK_PORT", "NETCHECK_PEERS"])
def test_a_bad_variable_is_bad_use(name: str) -> None:
    assert command("--nodes", "2", MASTER_ADDR="a", NODE_RANK="0", **{name: ":x:y]"}).returncode == 2


def test_variable_of_service_that_is_called_netcheck_is_ignored(unused_tcp_port: int) -> None:
    """Contract: seen on a cluster: Kubernetes sets NETCHECK_PORT if this Service has a cluster IP."""
    names = {"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "RDZV_ID": "one"}
    names |= {"NETCHECK_PORT": "tcp://10.96.196.87:29500", "MASTER_PORT": str(unused_tcp_port)}
    done = command("--json", **names)
    assert json.loads(done.stdout)["verdict"] == "ok", done.stderr


def test_help_lists_the_options() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "--peers" in done.stdout


def test_a_silent_world_of_one_fails_at_once() -> None:
    """Rank 3 that knows no number of nodes would train alone, and succeed."""
    done = command("--json", MASTER_ADDR="job-0.pods", NODE_RANK="3")
    assert done.returncode == 1
    assert json.loads(done.stdout)["cause"] == "variables.world_of_one"


def test_one_node_alone(unused_tcp_port: int) -> None:
    """One node has no pairs; everything else is proved."""
    names = {"NNODES": "1", "NODE_RANK": "0", "WORLD_SIZE": "1", "RDZV_ID": "one"}
    done = command("--json", "--port", str(unused_tcp_port), MASTER_ADDR="127.0.0.1", **names)
    assert json.loads(done.stdout)["verdict"] == "ok", done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--strict",), 3)])
def test_an_unknown_result_is_a_warning_unless_strict(
    more: tuple[str, ...], code: int, unused_tcp_port: int
) -> None:
    """Contract: a script with `set -e` goes on, because nothing failed."""
    names = {"NNODES": "1", "NODE_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = command("--json", "--port", str(unused_tcp_port), *more, **names)
    assert (json.loads(done.stdout)["verdict"], done.returncode) == ("unknown", code)
    assert done.stderr.startswith("netcheck: WARNING: not known: greeting: no run id is set")
