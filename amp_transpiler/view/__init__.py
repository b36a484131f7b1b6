"""Programs to look at: as text, and as drawings of the graph before and after its conversion."""
