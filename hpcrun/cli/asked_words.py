"""The words in which people ask ``hpcrun help``, and those of hpcrun's pages that they mean."""

from __future__ import annotations

_STOP_WORDS = """
a actually am an and another any anyone are as ask at be been being by can cannot cant could did do
does doesn dont eight first for four from get gets give go goes got had happen happens has have how
i if im in into is isn it its just ll many me much my need not now of on once one or our out please
really right s should so some someone still than that the their them there these they this to two up
use used using ve want was way we were what when where which while who why will with without won
would you your
"""
STOP = frozenset(_STOP_WORDS.split())
# Words of people who know other programs: words of hpcrun's own pages.
_MEANINGS = """
abort kill scancel: cancel
accuracy: results metrics
activate mamba miniconda micromamba: conda environment.python
afterok dependency dependencies: depends_on
alert email mail notify telegram discord webhook: notify mail
alter extend: update change
api: python hpcrun.submit api
archive: export
argparse: args flags argument
array slurm_array_task_id: sweep max_parallel array
asha: prune halving search
autocomplete vscode: completes schema editor
bandwidth: links measures doctor
bayes bayesian: bayesian search sweep
begin: begin sbatch
blacklist drain drained: exclude bad
bool: boolean flags
broken: bad node fail
budget: cost price prices
callback notification: notify
carbon co2 electricity kwh: energy power gpu_watts
charge: account
ckpt: checkpoint
colleague group: group share
concurrent: max_parallel
conda: environment.setup environment.python conda
config: config spec
convert: convert from-sbatch weights
core cpus threads: cpus_per_task
crash: fail
csv excel: results csv
curves: report curves
debug: local run
debugger pdb: debug stacks shell
die died dies: fail dies lost why
disk: disk clean
diverge: diverge nan spike
docker podman: container image
elastic resize: another number ranks
env: environment variables
epoch: epoch step
error: error message why
evaluate: evaluator evaluation
everything: all experiments
faq: questions
finetune pretrained: initialize_from weights
fit: fit estimate
folder: directory
format: spec
free: clean delete
fsdp: fsdp2 parallelism divided ranks
gpus: gpus_per_node
gres: gpus_per_node gpu_type
grid hyperparameter multirun hpo: sweep
hang hung freeze freezes: hang stacks
hf_home: HF_HOME cache environment.variables
hold: hold held
host hostname machine: node
home: home root directory
hydra: hydra key=value flags
inherit: extends
inference: weights
inode: inodes quota files
interactive: shell exec interactive
interface: interface fabric
job: run job
jupyter notebook: notebook python
keys reference: specs keys
killed: end fail
laptop locally workstation: local without
launch: torchrun submit
lmod module: environment.setup module
limit: limit time max_parallel
login: shell node
lr: learning rate
mac macbook: laptop
memory: memory mem
money: cost price
monitor: status top
most: most max_parallel
mpirun mpiexec openmpi mpich: mpi
multi multinode: nodes
nnodes: resources.nodes
nvidia: nvidia-smi exec GPU
oom: out_of_memory memory
optuna: search sweep
output: logs output
overrides: overrides key=value flags
parallel: max_parallel parallel
pd pending: pending waits reason
pip: environment python packages
plot: report
plugin: extending package
poetry pdm pixi virtualenv venv: environment.python venv
port: port MASTER_PORT
preemptable preempted preemptible spot: preemption
printed stdout stderr: logs rank
progress: status progress
pytorch: torch framework
qsub: submit sbatch
queue: pending queued
quota: quota disk clean
reproducible reproducibility deterministic determinism: promised seed order
ray: framework search
remove: delete clean
renice: update nice priority
rerun retry: requeue
restart: requeue restart
resume: resume checkpoint
sacct: status why
salloc: salloc shell run allocation
save: save checkpoint
scontrol: update requeue show
search: search sweep
secret: secrets_file
settings: keys extends
sinfo: check doctor
singularity: apptainer container
slack: notify command
slow: slow profile
slurm_job_id: HPCRUN_RUN
slurm_job_nodelist slurm_nodelist: HPCRUN_HOSTS
slurm_ntasks slurm_nprocs: WORLD_SIZE
slurm_procid slurm_localid slurm_nodeid: RANK LOCAL_RANK NODE_RANK
slurm_submit_dir: working directory
slurm_tmpdir: TMPDIR scratch
squeue: status
srun: run
ssd: own disk
stop terminate: cancel stop
stored: root
stuck: stuck hang
student: group
submitit: submit sbatch
table: results
tail: logs follow
take: take estimate
timelimit: update resources.time time
timeout: time time_limit
token: secrets tokens secrets_file
track: tracking
uncommitted: uncommitted code
upgrade: upgrade pip
user: colleague
utilisation utilization: telemetry gpu top
uv: environment python venv uv
wait: pending waits
walltime: resources.time time
yaml: spec YAML
zero: deepspeed zero_optimization
"""
SYNONYMS = {
    word: meaning
    for names, _, meaning in (line.partition(": ") for line in _MEANINGS.split("\n"))
    for word in names.split()
}
# A passage's title: words by which people ask for it that it does not have.
_ASKED_FOR = """
A conda environment, or a venv: anaconda share users python version mismatch interpreter
A default profile for the whole site: admin everyone all users
A shell on the node of a running job (ssh, log in, attach): connect into terminal interactive \
login inside enter
Add TensorBoard, MLflow: experiment tracking logging
An e-mail: notification finished failed when job done ends
Another partition for one run: use different
Bad nodes: broken faulty hardware ecc drain
Batch size, gradient accumulation: micro effective global too large per gpu
Best run, plot the loss, export results as CSV: compare accuracy winner summary metrics table curve
Change the root, move runs to another directory, home is too small: location
Change what is queued: time limit, partition, QOS; a learning rate: modify edit increase priority \
higher lower after submit waiting move
Checkpoints in an object store: s3 gcs bucket minio cloud upload
Checkpoints: Another number of ranks: change gpus nodes different elastic reshard running number \
scale up down resume fewer more
Checkpoints: Saving: corrupt verified atomic
Choosing runs: filter select only which failed wildcard
Containers: bind mount nv docker image
Data: shuffle dataset streaming iterable
Data sets on the node's own disk (local scratch, SSD): copy dataset tmp faster stage untar local
Data: What is promised: reproducibility reproducible deterministic same results seed
Data: num_workers: dataloader workers how many
DeepSpeed's configuration: json auto trainer
Delete old runs: clean up remove experiment space
Early stopping: patience plateau converge validation stops improving
Errors and messages: meaning understand
Estimating memory, time and money: The catalogue: known gpus
Extending hpcrun: plugin custom own
Finding files: where path output results keep its files hpcrun
Frameworks: A script that starts its ranks itself: ray dask spark cluster launcher own
Frameworks: Accelerate: launch multi node
Frameworks: Hugging Face: Trainer and TRL: transformers sft dpo peft
Frameworks: Lightning: SLURMEnvironment devices num_nodes auto requeue
From Python: api notebook submit program import
GPU utilisation: usage busy idle percent memory monitor nvidia-smi whole history driver using gpu \
is my know
GPUs, CPUs, memory, time, partition, account of a job: request ask resources ram cores gres
Getting started: On a cluster: install setup first steps
Getting started: Without YAML: quick command line script one
Getting started: Your training program: integrate session loop my code
How long until it finishes (progress, ETA): remaining left speed percent done take
How much memory did my job use (sacct, seff): peak maxrss efficiency ram did cpu used
Hyperparameter search, bayesian optimisation: tune tuning tuner ray several different values \
learning rates
Include another YAML file, refer to a key, override a value: set change reference variable share \
settings base import default override command line without editing file hyperparameters
Is my code copied; which version of code did a run use: can edit change pending queued while \
running safe dirty git repo commit
It hangs, it is stuck: frozen deadlock not responding progress stalled nothing happens
Jupyter, an interactive session (salloc): gpu notebook allocation srun pty debug node
Keeping order: Before it gets expensive: budget spent hours cap
Keeping order: Being told: slack teams discord telegram chat webhook ping
Keeping order: Tags, notes and names: label comment description
Keeping order: With colleagues: users same root shared multi
Kill a single run, stop one job: cancel abort scancel terminate only pending
Limit to 4 jobs at a time: throttle simultaneous concurrency
Limit what students and others can use: multiple users account quota per restrict everybody lab
Log out, close my laptop (nohup, tmux, background): keep running after logout disconnect ssh \
terminal closed keep go on screen tmux
Looking inside a running job: debugger pdb py-spy gdb attach breakpoint debug
Models that are divided between ranks: megatron model too big for one gpu split shard
Models that are divided between ranks: Ranks that should agree are compared: sync drift desync \
differ
Modules (module load, Lmod): cuda version gcc spack toolchain
My data directory is not found (git ignores it); a module of the directory above: own package \
import cannot find dataset missing
My loss diverges, is NaN: explode inf spike
NCCL and InfiniBand: rdma roce ib interface network socket ifname slow debug log level
NCCL's watchdog: a collective that was given up: timeout timed out allreduce barrier increase
Observing: Programs without a session: metrics own script print show log progress
One experiment or job after another (dependency, afterok): pipeline workflow sequence then chain \
preprocessing
Optimizers and learning rates: Schedules: warmup cosine decay scheduler
Optimizers and learning rates: The batch and the rate: scaling linear rule
Partitions, free GPUs, longest time, my limits, fair share: list available idle max maximum jobs \
allocation budget left remaining fairshare sinfo queue cluster which many submit
Pass a list or a boolean flag as an argument (argparse): hyperparameters arguments script
Precision, memory and cheaper communication: Without DeepSpeed: FSDP2: fsdp ddp switch shard
Profiling: trace flamegraph nsys nsight kernel
Programs to copy: example template sample starter
Raise a running job's time: change extend increase longer limit
Recovery: Warned stops: signal handler sigusr1 sigterm grace before kill
Rerun failed runs: again retry restart resubmit crashed difference submit requeue
Resume by itself, go on from the last checkpoint; a preemptable partition: killed after 24 hours \
longer than max walltime continue forever until done exceeds automatically training over
Roles: server inference vllm redis actor learner reinforcement different programs
Roles: An evaluator that follows checkpoints: evaluate validation separate during
Run without Slurm, on my workstation: laptop local machine test cluster try single gpu debug
Runs of another user, who is running what on the cluster: colleague others everybody see
Same run or a new one: I changed the code, a value: overwrite resubmit name already exists \
again twice two directories duplicate skip finished completed done
Secrets and API tokens: password key login credentials hide environment hf_token private
Set an environment variable (HF_HOME), a proxy for compute nodes: pass export env vars job
Share results with my group: supervisor look permissions colleague read access
Start from another run's weights, fine-tune: pretrained finetune load transfer
Start later (begin), hold a job: schedule tonight delay at night weekend
Stop everything: kill cancel scancel all jobs
Stop jobs at night, pause and go on later: suspend resume
Sweep over seeds: random different per run repeat array same config times pass
Sweeps: grid combinations product
Sweeps: Afterwards: add more values later
Sweeps: Many small runs in one job: pack several multiple share one node gpu
TensorBoard, Weights & Biases and MLflow: offline sync
The log of rank 3: each per separate other process
The working directory: Ranks that write one file: save only rank 0 race overwrite
Train longer: more steps or epochs: extend continue finished completed additional further
Tuning: largest batch size automatic fastest
Two nodes with torchrun: multinode distributed nproc_per_node rdzv several launch accelerate run
Upgrade, uninstall hpcrun; is Python 3.9 enough: update newer version install
Variables of a rank (RANK, LOCAL_RANK, CUDA_VISIBLE_DEVICES), which GPU it uses: environment \
world size local set_device all processes use gpu 0 only one
Weights & Biases (wandb): project entity login offline
What did it cost: gpu hours used spent usage bill report month
What happens when a node dies: failure down broken hardware lost
What may be in a YAML file: all options keys reference list available settings
When runs fail: from scratch beginning starts over zero lost progress
Where are my checkpoints: saved model weights location find directory
Where is the output, the log file slurm-123.out: stdout stderr print change redirect directory \
file written
Who uses my quota, the disk; too many small files (inodes): how much storage size space used full
Why did my run fail: finishes immediately crash error die end killed stopped reason
Why is my job pending, why does it not start, how long until it starts: stuck queue waiting days \
backfill position estimated when
Why is training slow: speed slower faster throughput bottleneck two nodes than one low idle
args: arguments positional
batch_script: shell bash around preprocess
checkpoint.asynchronous: async background
checkpoint.every: save often interval frequency minutes hours epoch steps model
checkpoint.keep: too many big disk old deleted
checkpoint.keep_best: best only
checkpoint.nearby_every: local nvme ssd fast
code.exclude: ignore large snapshot too big
code.link: data symlink large files
code.root: parent directory repository monorepo
config: parameters hyperparameters
confirm_above.gpu_hours: warn ask expensive
deepspeed: gradient_clipping clipping clip optimizer grad norm
deepspeed_config: zero stage preset
depends_on: after wait chain
entry: program main module
environment.setup: run script commands before job training starts bashrc profile prologue source
environment.venv: pip install packages editable freeze
flags: underscores dashes style
hpcrun cancel: scancel all jobs one experiment stop
hpcrun check: validate test verify will it run syntax
hpcrun completion: tab autocomplete
hpcrun diff: compare difference between
hpcrun doctor: diagnose test nodes network slow
hpcrun drill: simulate chaos failure preemption test
hpcrun estimate: need how much fit model memory gpus before
hpcrun exec: command inside
hpcrun export: archive zip tar download backup
hpcrun init: convert migrate template project new
hpcrun list: experiments all my show
hpcrun logs: see view print
hpcrun plan: preview validate test without submitting script generated sbatch
hpcrun report: html plots dashboard share
hpcrun requeue: restart again undo cancelled resume
hpcrun results: table final metrics mean std pandas dataframe
hpcrun scaling: faster efficiency strong weak speedup
hpcrun show: details id full config
hpcrun stacks: deadlock py-spy where hang
hpcrun status: which node where running squeue watch jobs now host
hpcrun submit: launch start several multiple specs experiments at once sbatch wait block until \
finish
hpcrun tag: label mark
hpcrun top: watch live dashboard temperature power utilization
hpcrun weights: zero_to_fp32 consolidate merge inference load upload hub deploy serve \
export model format huggingface
hpcrun why: restart restarted failed reason crash traceback first error cause message slurm \
requeued preempted
limits.max_array_size: MaxArraySize too many
name: job set call experiment
notify.command: run script after training end finished hook
optimization.compile: torch.compile
precision: bf16 fp16 fp8 amp half mixed tf32
prices.gpu_hour: cost euro dollar money
prices.gpu_watts: footprint emissions
progress.pattern: regex parse print step loss shown
recovery.grow: increase double automatically after oom
recovery.hang_after: timeout watchdog disable detection
recovery.max_failures: keeps restarting requeued requeuing loop retries times
recovery.requeue: disable turn off auto restart requeue never
recovery.resume: from scratch beginning over again after preemption
recovery.shrink: fewer nodes smaller elastic resume with
recovery.shrink_micro_batch: reduce halve batch automatically oom
recovery.stop_signal: sigusr1 sigterm trap handler catch
recovery.wandb: run id same new after restart resume duplicated
resources.account: project allocation charge
resources.cpus_per_task: cores threads cpu data loading
resources.exclude: node avoid skip never use
resources.gpu_type: 80gb 40gb kind model only h100 a100 v100
resources.gpus_per_node: cpu only no gpu mig slice
resources.mem: ram gb
resources.ntasks_per_node: processes tasks
resources.partition: several multiple more than one queue
resources.qos: priority
resources.sbatch: nodelist specific node option extra any exclusive license
resources.spare_nodes: standby hot
resources.time: format days hours minutes
search.learn_from: continue earlier study reuse
search.more_objectives: multiple objectives multi pareto
search.prune: asha hyperband pruning pruner stop bad trials early terminate
search.space: distribution log uniform loguniform range sample continuous
search.trials: number samples
sweep.exclude: skip combination
sweep.random: search log scale uniform
sweep.points: csv list file of parameters combinations pairs
sweep.union: combine two concatenate
sweep.zip: together paired pairs
working_directory: cwd relative overwritten
"""
ASKED_FOR = dict(line.rpartition(": ")[::2] for line in _ASKED_FOR.strip().split("\n"))
# Several words that are one -> that word.
PHRASES = {
    "at (?:once|the same time)": "simultaneous",
    "fine-tune": "finetune",
    "(?:from|on|in) (?:the )?command ?line": "override",
    "go(?:es|ing)? on": "resume",
    "log in": "login",
    "multi-run": "multirun",
    "(?:switch|turn)(?:ed|ing)? off": "disable",
    "w&b": "wandb",
}

# What an answer is worth beside others, by its topic: those first that say what to type.
WORTH = {
    "questions": 1.5,
    "recipes": 1.7,
    **dict.fromkeys(("architecture", "extending", "glossary", "processes", "security"), 0.6),
    **dict.fromkeys(("checkpoints", "observing", "records", "recovery-rules"), 0.8),
}
