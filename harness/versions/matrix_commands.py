"""`harness matrix`: launch the cells of a matrix, and write the results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from harness.context import RunContext
from harness.launch.workload_file import load as load_workload
from harness.versions import matrix_plan as planning
from harness.versions import matrix_report
from harness.versions.matrix import Matrix, continued, new_folder
from harness.versions.matrix_definition import Definition
from harness.versions.matrix_results import Document


def matrix(
    definition: Definition,
    folder: Path | None,
    context: RunContext,
    view: Callable[[Matrix], AbstractContextManager[object]],
) -> Document:
    """Launch all cells of a matrix, and write the results. If `folder` is given, continue the matrix in this
    folder.

    `view` displays the matrix while it runs. If the job, the packages or the rules are not valid, UsageError
    is raised before anything is created. If the process is interrupted, the results so far are written.
    """
    load_workload(definition.job)
    folder = continued(folder) if folder else new_folder(context.settings.runs_dir)
    plan = planning.plan(definition, planning.axes(definition, context))
    for note in plan.notes:
        context.progress(note)
    matrix_run = Matrix(definition, plan, folder, context)
    context.progress(f"{len(plan.cells)} cells, results in {folder}")
    try:
        with view(matrix_run):
            matrix_run.run()
    except KeyboardInterrupt:
        context.progress(f"interrupted; to continue, repeat the command with --continue {folder}")
        raise
    finally:
        if any(result.outcomes for result in matrix_run.results):
            matrix_report.write(matrix_run.document())
    return matrix_run.document()
