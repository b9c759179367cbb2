"""Trainers that people run: what each can express, its configuration files, plans for it."""
