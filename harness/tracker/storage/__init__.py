"""What is written, and how: the database, its schema, and the process that writes."""
