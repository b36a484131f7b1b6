"""How the corpus of real models is rebuilt: downloads, facts, inputs, trial runs, torch exports.

Used by `lab/fetch_corpus.py`, `lab/export_corpus.py` and `lab/export_models.py`.
"""
