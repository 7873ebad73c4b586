"""The report page: one HTML file, and the parts that it is made of."""
