"""Runs in SkyPilot's environment: notes clouds as `sky check` does with an account."""

import json
import sys

from sky import check, global_user_state
from sky.clouds import cloud
from sky.skylet import constants

WORKSPACE = constants.SKYPILOT_DEFAULT_WORKSPACE

allowed = check._get_workspace_allowed_clouds(WORKSPACE)
global_user_state.set_allowed_clouds(allowed, WORKSPACE)
global_user_state.set_enabled_clouds(json.load(sys.stdin), cloud.CloudCapability.COMPUTE, WORKSPACE)
print("null")
