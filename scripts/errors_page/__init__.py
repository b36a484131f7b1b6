"""The page of errors: what the package raises, read from its source."""
