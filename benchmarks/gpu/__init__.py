"""All that one GPU can tell about the predictions; `python -m benchmarks.gpu`."""
