-- A sample for Slurm's cli_filter/lua: nodes and GPUs of a job from its curve.
--
-- It runs in sbatch, srun and salloc on the submitting host, never in slurmctld (a job_submit
-- plugin would: it must not wait for a service). slurm.conf: CliFilterPlugins=cli_filter/lua; this
-- file is cli_filter.lua in the folder of slurm.conf. curl waits at most `timeout_s`; whatever goes
-- wrong, the job is submitted as its user asked.
--
--   SHARDWISE_GRAPH=shipped:gpt2 SHARDWISE_HARDWARE=dgx-v100-16gb sbatch train.sh
--
-- Only sbatch's and salloc's requests are touched, and only what their user left open.

local timeout_s = 3
local server = os.getenv("SHARDWISE_SERVER") or "http://127.0.0.1:8000"

-- Quotes for a shell: in single quotes, with inner ones closed, escaped and reopened.
local function quoted(text)
   return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

local function advice(graph, hardware)
   local command = "curl --silent --fail --get --max-time " .. timeout_s
      .. " --data-urlencode " .. quoted("graph=" .. graph)
      .. " --data-urlencode " .. quoted("hardware=" .. hardware)
      .. " --data-urlencode " .. quoted("max_gpus=" .. (os.getenv("SHARDWISE_MAX_GPUS") or "8"))
      .. " --data-urlencode format=sbatch " .. quoted(server .. "/v1/curves") .. " 2>/dev/null"
   local pipe = io.popen(command)
   if pipe == nil then
      return nil
   end
   local script = pipe:read("*a") or ""
   pipe:close()
   return string.match(script, "#SBATCH %-%-nodes=(%d+)\n"), string.match(script, "#SBATCH %-%-gres=(gpu:%d+)\n")
end

-- What a user left open is nil, or "(null)" in some releases.
local function open(value)
   return value == nil or value == "" or value == "(null)"
end

function slurm_cli_setup_defaults(options, early_pass)
   return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
   local graph, hardware = os.getenv("SHARDWISE_GRAPH"), os.getenv("SHARDWISE_HARDWARE")
   if graph == nil or hardware == nil or options["type"] == "srun" then
      return slurm.SUCCESS
   end
   if not (open(options["gres"]) and open(options["gpus"])) then
      return slurm.SUCCESS
   end
   local ok, nodes, gres = pcall(advice, graph, hardware)
   if not ok or nodes == nil or gres == nil then
      slurm.log_info("shardwise: no curve; submitted as it was asked for")
      return slurm.SUCCESS
   end
   options["nodes"] = nodes
   options["ntasks-per-node"] = "1"
   options["gres"] = gres
   slurm.log_info("shardwise: %s node(s) with %s each", nodes, gres)
   return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
   return slurm.SUCCESS
end
