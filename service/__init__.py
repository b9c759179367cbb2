"""The service: advice over HTTP, computed by workers, lost never."""
