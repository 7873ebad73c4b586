"""Read the last lines of a rank's log to find the rank's last error and its thread stacks."""
