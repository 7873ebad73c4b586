"""Read the end of a rank's log: its last error, and where its threads stood."""
