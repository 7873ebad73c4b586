"""The routes of the API, the types of requests and responses, and helpers to read and write them."""
