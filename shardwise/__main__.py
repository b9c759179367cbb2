"""`python -m shardwise`: the commands, where the program is not on the PATH."""

from shardwise.cli.main import main

main()
