"""Check what a machine needs for a run, and repair it.

checks.checks(settings)   every check, in the order a person would repair them
repair.fix(context)       repairs what it can, then checks again
check.render(checks)      for a terminal
check.as_json(checks)     for a program
check.exit_code(checks)   0, or 2 when a required check fails
"""
