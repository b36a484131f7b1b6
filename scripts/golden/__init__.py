"""What a conversion does, recorded for comparing two versions of the code."""
