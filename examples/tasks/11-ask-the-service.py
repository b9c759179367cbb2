"""Asks a service over HTTP: a plan for torchtitan, its file, and the curve from the store.

Needs: the extras service and client.
"""

import subprocess

import shardwise

with subprocess.Popen(
    ["shardwise", "serve", "--port", "0", "--data-dir", "data"], stdout=subprocess.PIPE, text=True
) as service:
    try:
        url = next(line.split()[-1] for line in service.stdout if "http://" in line)
        client = shardwise.Client(url)
        plan = client.plan("shipped:gpt2", "dgx-h100", 8, space="torchtitan")
        print(f"{plan.predicted.replayed_time_s:.5f} s a step")
        print(client.export(plan.id, to="torchtitan").text)
        curve = client.curve("shipped:gpt2", "dgx-h100", max_gpus=4)
        for point in curve.points:
            print(point.gpus, "GPUs:", round(point.replayed_time_s, 3), "s a step")
    finally:
        service.terminate()
