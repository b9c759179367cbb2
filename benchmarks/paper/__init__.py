"""The papers' tables and figures next to ours; `python -m paper` writes them all."""
