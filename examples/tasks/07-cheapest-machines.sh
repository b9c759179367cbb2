#!/bin/sh
# Which of the machines that I was offered does the job cheapest, by a deadline?
# Needs: the base install.
set -eu

cat > offers.csv <<'END'
InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,Provider,PriceAsOf,PriceSource,Hardware
8xh100,H100,8,24.00,,here,ours,2026-11-01,contract,dgx-h100
8xa100,A100-80GB,8,12.00,,here,ours,2026-11-01,contract,dgx-a100-80gb
8xv100,V100,8,6.00,,here,ours,2026-11-01,contract,dgx-v100-16gb
END
shardwise quote shipped:gpt2 --offers offers.csv --steps 100000 --deadline 7200 --max-instances 1 \
    --quiet
