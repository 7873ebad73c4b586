"""Check whether a machine meets the harness's requirements, and repair it.

checks.checks(settings)   runs all checks, in the order in which failures should be repaired
repair.fix(context)       repairs what it can, then runs the checks again
check.render(checks)      formats the results for a terminal
check.as_json(checks)     returns the results as JSON
check.exit_code(checks)   returns 0, or 2 if a required check failed
"""
