"""Published training steps, predicted without measuring (docs/accuracy.md)."""
