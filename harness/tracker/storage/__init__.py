"""The database: its schema, migrations, and all writes."""
