"""Facts about a conversion, worked out for its report: what was decided, what it takes and what is at risk."""
