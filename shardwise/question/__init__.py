"""What is asked, and which combinations are refused."""
