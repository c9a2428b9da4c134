"""The static half: source files in, findings out, without torch and without importing what it reads."""
