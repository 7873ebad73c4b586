"""The application: connections, authentication, and the scope of each key."""
