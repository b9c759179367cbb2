"""What tests of several rooms share: processes and servers, with nothing of pytest in it."""
