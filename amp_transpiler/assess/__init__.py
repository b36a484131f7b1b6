"""Works out facts about a conversion for its report: what was decided, what it takes and what is at risk."""
