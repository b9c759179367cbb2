"""Runs in Ray's environment on a cluster's head: Ray Train trains a user's module by a plan.

Given the keywords of `ScalingConfig`, a plan and a folder that all nodes see; prints where the
workers ran, and how far loss and gradients are from those of one device.
"""

import json
import sys
from pathlib import Path

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from harness.containers.trained_net import a_batch, a_net
from shardwise.schedulers.ray import keywords


def train(config):
    import torch.distributed as dist

    import shardwise

    net, batch = a_net(), a_batch()
    loss = net(*batch)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    model = shardwise.parallelize(net, batch, config["plan"])
    off = []
    for given in (batch, model.share(*batch)[0]):
        model.zero_grad()
        computed = model(*given)
        computed.backward()
        off.append(abs(float(computed.detach() - loss.detach())))
        for name, parameter in model.named_parameters():
            whole = model.store.whole(name, parameter.grad)
            off.append(float((whole - gradients[name]).abs().max() / gradients[name].abs().max()))
    context = ray.train.get_context()
    place = (context.get_world_rank(), ray.util.get_node_ip_address(), ray.get_gpu_ids())
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, place)
    # Ray keeps no metrics without a checkpoint.
    if context.get_world_rank() == 0:
        Path(config["results"]).write_text(json.dumps({"places": places, "off": max(off)}))


given = json.load(sys.stdin)
ray.init(address="auto", logging_level="ERROR")
scaling = ScalingConfig(**keywords(given["scaling"]))
trainer = TorchTrainer(
    train,
    train_loop_config={"plan": given["plan"], "results": given["folder"] + "/results.json"},
    scaling_config=scaling,
    run_config=RunConfig(storage_path=given["folder"]),
    torch_config=TorchConfig(backend="gloo"),
)
trainer.fit()
results = json.loads(Path(given["folder"], "results.json").read_text())
hosts = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in ray.nodes()}
places = [[rank, hosts[address], gpus] for rank, address, gpus in results["places"]]
print(json.dumps({"places": sorted(places), "off": results["off"]}))
