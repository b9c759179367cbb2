"""What runs real operators: needs torch, imported only when used."""
