"""The routes of the API, their types, and the reading of requests and writing of responses."""
