-- A sample for Slurm's cli_filter/lua: nodes and GPUs of a job from its curve.
--
-- It runs in sbatch on the submitting host, never in slurmctld (a job_submit plugin would: it must
-- not wait for a service). slurm.conf: CliFilterPlugins=cli_filter/lua; this file is cli_filter.lua
-- in the folder of slurm.conf. The question waits at most `timeout_s`; whatever goes wrong, the job
-- is submitted as its user asked.
--
--   SHARDWISE_GRAPH=shipped:gpt2 SHARDWISE_HARDWARE=dgx-v100-16gb sbatch train.sh
--
--   SHARDWISE_SERVER    http://127.0.0.1:8000
--   SHARDWISE_KEY_FILE  a file with the service's key, if it needs one
--   SHARDWISE_MAX_GPUS  8
--
-- Left alone are srun and salloc, job arrays, heterogeneous jobs, scripts on standard input (they
-- may be heterogeneous), and whoever names nodes, tasks or GPUs. The job's comment says what was
-- asked and what was advised; AccountingStoreFlags=job_comment keeps it in the accounting database.

local timeout_s = 3
local server = os.getenv("SHARDWISE_SERVER") or "http://127.0.0.1:8000"
local most_gpus = tonumber(os.getenv("SHARDWISE_MAX_GPUS") or "8") or 8

-- Quotes for a shell: in single quotes, with inner ones closed, escaped and reopened.
local function quoted(text)
   return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

-- What a command prints, at most 64 KiB. curl's own limit does not end a hanging name server.
local function output(command, given)
   local pipe = io.popen(given .. "timeout --kill-after=1 " .. timeout_s .. " " .. command
      .. " 2>/dev/null | head -c 65536")
   if pipe == nil then
      return ""
   end
   local text = pipe:read("*a") or ""
   pipe:close()
   return text
end

-- The key goes by standard input: every user can read the arguments of a process.
local function key_header()
   local file = os.getenv("SHARDWISE_KEY_FILE")
   if file == nil or file == "" then
      return "", ""
   end
   local header = "'header = \"Authorization: Bearer %s\"\\n'"
   return "printf " .. header .. " \"$(cat " .. quoted(file) .. " 2>/dev/null)\" | ", "--config - "
end

-- Nodes and GPUs of each, as numbers; nothing without an answer that is a script within bounds.
local function advice(graph, hardware)
   local key, config = key_header()
   local script = output("curl " .. config .. "--silent --fail --get --max-time " .. timeout_s
      .. " --data-urlencode " .. quoted("graph=" .. graph)
      .. " --data-urlencode " .. quoted("hardware=" .. hardware)
      .. " --data-urlencode " .. quoted("max_gpus=" .. most_gpus)
      .. " --data-urlencode format=sbatch " .. quoted(server .. "/v1/curves"), key)
   local nodes = tonumber(string.match(script, "#SBATCH %-%-nodes=(%d+)\n"))
   local gpus = tonumber(string.match(script, "#SBATCH %-%-gres=gpu:(%d+)\n"))
   if nodes == nil or gpus == nil or nodes < 1 or gpus < 1 or nodes * gpus > most_gpus then
      return nil
   end
   return nodes, gpus
end

-- What a user left open is nil; "(null)" in some releases; -2 for numbers, 1-0 for nodes.
local function open(value)
   return value == nil or value == "" or value == "(null)" or value == "-2" or value == "1-0"
end

-- One task is also what nobody asked for.
local function names_a_size(options)
   for _, name in ipairs({"nodes", "ntasks-per-node", "gres", "gpus", "gpus-per-node",
                          "gpus-per-task", "gpus-per-socket", "nodelist"}) do
      if not open(options[name]) then
         return true
      end
   end
   return not (open(options["ntasks"]) or options["ntasks"] == "1")
end

local function is_heterogeneous(options, offset)
   if offset ~= nil and offset > 0 then
      return true
   end
   local line = io.open("/proc/self/cmdline")
   if line ~= nil then
      local words = line:read("*a")
      line:close()
      if string.find(words, "\0:\0", 1, true) then
         return true
      end
   end
   if not open(options["wrap"]) then
      return false
   end
   local name = options["argv"] and options["argv"][1]
   local script = name and io.open(name)
   if not script then
      return true
   end
   local text = script:read(1048576) or ""
   script:close()
   return string.find("\n" .. text, "\n#SBATCH%s+hetjob") ~= nil
      or string.find("\n" .. text, "\n#SBATCH%s+packjob") ~= nil
end

-- Whether the partition has so many nodes with so many GPUs: sbatch refuses what can never run.
local function fits(nodes, gpus, partition)
   local listed = output("sinfo --noheader --format='%P|%D|%G'", "")
   local found, rows = 0, 0
   for name, count, gres in string.gmatch(listed, "([^|\n]*)|(%d+)|([^\n]*)") do
      local plain = string.gsub(name, "%*$", "")
      local here = plain ~= name
      if not open(partition) then
         here = string.find("," .. partition .. ",", "," .. plain .. ",", 1, true) ~= nil
      end
      if here then
         rows = rows + 1
         local each = 0
         for one in string.gmatch(gres, "gpu:[^,]*") do
            each = each + (tonumber(string.match(one, "^gpu:(%d+)")
               or string.match(one, "^gpu:[^:]*:(%d+)")) or 0)
         end
         if each >= gpus then
            found = found + tonumber(count)
         end
      end
   end
   return rows == 0 or found >= nodes
end

local function advise(options, offset)
   local graph, hardware = os.getenv("SHARDWISE_GRAPH"), os.getenv("SHARDWISE_HARDWARE")
   if open(graph) or open(hardware) or options["type"] ~= "sbatch" then
      return
   end
   if not open(options["array"]) or names_a_size(options) or is_heterogeneous(options, offset) then
      return
   end
   local nodes, gpus = advice(graph, hardware)
   if nodes == nil then
      slurm.log_info("shardwise: no curve; submitted as it was asked for")
      return
   end
   if not fits(nodes, gpus, options["partition"]) then
      slurm.log_info("shardwise: no %d node(s) with %d GPU(s) each; submitted as it was asked for",
         nodes, gpus)
      return
   end
   options["nodes"] = tostring(nodes)
   options["ntasks-per-node"] = "1"
   options["gres"] = "gpu:" .. gpus
   if open(options["comment"]) then
      options["comment"] = string.format("shardwise: asked for no size; advised nodes=%d gres=gpu:%d"
         .. " for %s on %s", nodes, gpus, graph, hardware)
   end
   slurm.log_info("shardwise: %d node(s) with %d GPU(s) each", nodes, gpus)
end

function slurm_cli_setup_defaults(options, early_pass)
   return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
   local ok, reason = pcall(advise, options, offset)
   if not ok then
      slurm.log_info("shardwise: %s", tostring(reason))
   end
   return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
   return slurm.SUCCESS
end
