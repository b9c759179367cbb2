"""Runs in Ray's environment: Ray Train's own ScalingConfig takes our keywords."""

import json
import sys

from ray.train.v2.api.config import ScalingConfig

from shardwise.schedulers.ray import keywords

rows = []
for document in json.load(sys.stdin):
    config = ScalingConfig(**keywords(document))
    rows.append([config.min_workers, config.max_workers, config.use_gpu])
print(json.dumps(rows))
