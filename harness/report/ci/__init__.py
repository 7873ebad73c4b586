"""Results for CI: JUnit, CTRF, GitHub Actions, and a summary in Markdown."""
