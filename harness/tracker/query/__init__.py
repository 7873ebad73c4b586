"""What is read from the database, and how."""
