"""The report page, an HTML file, and the data of its sections."""
