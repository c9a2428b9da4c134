"""Findings as text, JSON, SARIF, GitHub annotations, JUnit and HTML."""
