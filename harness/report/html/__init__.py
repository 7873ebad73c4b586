"""The HTML report page, and the data for its sections."""
