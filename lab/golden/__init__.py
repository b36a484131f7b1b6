"""Records of conversions, for comparing two versions of the code."""
