"""The ASGI application: connections, authentication, and the permissions of each key."""
