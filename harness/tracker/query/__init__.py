"""All queries that read from the database."""
