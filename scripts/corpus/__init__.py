"""How the corpus of real models is rebuilt: downloads, facts, inputs, trial runs, torch exports.

Used by `scripts/fetch_corpus.py`, `scripts/export_corpus.py` and `scripts/export_models.py`.
"""
