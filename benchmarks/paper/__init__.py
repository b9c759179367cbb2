"""The papers' tables and figures with ours beside theirs; `python -m paper` writes them all."""
