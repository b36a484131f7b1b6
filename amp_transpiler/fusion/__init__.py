"""Writing several nodes as one operator, before precisions are decided: a file a subject, and a table of fusions."""
