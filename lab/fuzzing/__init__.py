"""Structure-aware fuzzing of a conversion: seeds, mutations, workers, a judge, and what was found."""
