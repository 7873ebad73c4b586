"""The application: connections, authentication, and what a request may reach."""
