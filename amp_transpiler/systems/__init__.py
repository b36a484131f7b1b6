"""Five systems of mixed precision: a folder each, with its rules and its front door."""
