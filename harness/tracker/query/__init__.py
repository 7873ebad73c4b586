"""All queries that read from the tracker's database."""
