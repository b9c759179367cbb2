"""Runs in SkyPilot's environment: what instances cost by its own catalog's reader.

Given rows of cloud, instance type, accelerator, count, region (or null) and spot, prints USD per
hour, or null where SkyPilot finds no price. A cloud that sells accelerators apart adds theirs.
"""

import json
import sys

from sky import catalog, clouds

prices = []
for cloud, instance, accelerator, count, region, spot in json.load(sys.stdin):
    try:
        price = catalog.get_hourly_cost(
            instance, use_spot=spot, region=region, zone=None, clouds=cloud
        )
        if cloud == "gcp":
            price += clouds.GCP().accelerators_to_hourly_cost(
                {accelerator: count}, use_spot=spot, region=region, zone=None
            )
        prices.append(price)
    except ValueError:
        prices.append(None)
print(json.dumps(prices))
