"""Runs real operators; needs torch, which is imported only when used."""
