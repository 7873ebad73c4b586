"""Report results to CI, as JUnit XML, CTRF, GitHub Actions annotations and a Markdown summary."""
