"""CI results: JUnit, CTRF, GitHub Actions and a Markdown summary."""
