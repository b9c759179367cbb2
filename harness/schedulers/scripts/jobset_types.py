"""Runs in an environment with JobSet's types: what they know of a document."""

import json
import sys

from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

print(json.dumps(JobsetV1alpha2JobSet.from_dict(json.load(sys.stdin)).to_dict()))
