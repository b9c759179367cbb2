"""`python -m shardwise.execute`: `shardwise run` as torchrun, srun and agents start it."""

import sys

from shardwise.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["run"]
    main()
