"""Read the last lines of a rank's log to find its last error and its thread stacks."""
