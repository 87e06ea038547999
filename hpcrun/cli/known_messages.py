"""Messages that people paste into ``hpcrun help``: what they are called, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcrun.observe.diagnosis import advice
from hpcrun.policy import causes
from hpcrun.slurm import pending_reason, refusals
from hpcrun.text import signal_name

_NODE_MEMORY = "The memory of a node ran out"
_MORE_MEMORY = (
    "Ask for more by `resources.mem`, or let the next start do so: `recovery: {grow: {mem: 1.5}}`. "
    "Fewer ranks or loader workers on a node have more each. `hpcrun why NAME` tells what that run "
    "had. Where a GPU's ran out, paste that message."
)
_GPU, _FULL = r"\b(?:cuda|gpus?|hip|vram)\b", r"(?:out.of.memory|memory.* full|\bOOM\b)"
# A message -> what it is called, and what it means.
_MESSAGES = (
    (r"oom.?kill", _NODE_MEMORY, _MORE_MEMORY),
    (
        rf"{causes.NO_GPU_MEMORY}|OutOfMemoryError|ErrorOutOfMemory|cudaErrorMemoryAllocation"
        rf"|{_GPU}.*{_FULL}|{_FULL}.*{_GPU}",
        "The memory of a GPU ran out",
        "`hpcrun why NAME` lists what lowers it for that run: smaller micro batches, more of ZeRO, "
        "offload. `recovery: {shrink_micro_batch: 3}` lets the next attempt halve the micro batch; "
        "`hpcrun estimate SPEC` tells before the queue what a run takes.",
    ),
    (
        rf"{causes.NO_NODE_MEMORY}|out.of.memory|(?-i:\bOOM\b)|MemoryError|DefaultCPUAllocator"
        r"|(?<!fork: )Cannot allocate memory|exceeded \S{0,7} ?memory limit",
        _NODE_MEMORY,
        _MORE_MEMORY,
    ),
    (
        r"DUE TO TIME.?LIMIT|(?-i:\bTIMEOUT\b(?!:))",
        "The job reached its time limit",
        "hpcrun saves before that and requeues; a run goes on from its newest checkpoint. Where no "
        "save fits in: more `resources.time`, a lower `checkpoint.every`, or `recovery: {grow: "
        "{time: 2}}`.",
    ),
    (
        r"DUE TO PREEMPTION|\bPREEMPTED\b|\bpreempt.* mean|what is preempt",
        "Slurm gave its nodes to a more important job (preemption)",
        "The run saves in the time that Slurm leaves, is requeued, and goes on by itself from its "
        "newest checkpoint.",
    ),
    (
        r"(?-i:NODE_FAIL|BOOT_FAIL)|DUE TO NODE FAILURE",
        "Slurm lost a node of the job",
        "The run did nothing wrong: it is requeued, and goes on from its newest checkpoint. "
        "`hpcrun why NAME` names the node; `resources.exclude` leaves it out.",
    ),
    (
        r"ChildFailedError|ProcessExitedException|ProcessRaisedException",
        "A process that torchrun or a spawn started ended badly",
        "The cause stands above that line, in the log of the process that failed first: `hpcrun "
        "why NAME` shows it, `hpcrun logs NAME --rank R` all of it.",
    ),
    (
        r"DataLoader worker .*killed by signal: Killed|\bSIGKILL\b|^(?:.*: )?Killed$",
        "A process was killed by SIGKILL (signal 9, exit code 137)",
        "Mostly because the memory of its node or job was full: `hpcrun why NAME` tells whether. "
        "Then ask for more by `resources.mem`, or let the next start do so: `recovery: {grow: "
        "{mem: 1.5}}`. Else Slurm or somebody ended it.",
    ),
    (
        r"\bSIGSEGV\b|segmentation fault|segfault",
        "A process was killed by SIGSEGV (signal 11, exit code 139)",
        "Its code or a library's touched memory that is not its own: mostly a compiled package "
        "that does not fit the others (torch, CUDA, NCCL), or a bug in it. `hpcrun logs NAME "
        "--rank R` has what it wrote last. `environment: {variables: {PYTHONFAULTHANDLER: "
        '"1"}}` has Python print where it was. Where it follows one node, `resources.exclude`.',
    ),
    (
        r"\bSIGTERM\b|^(?:.*: )?Terminated$",
        "A process was asked to end by SIGTERM (signal 15, exit code 143)",
        "Somebody ended it: Slurm (time limit, preemption, scancel), or a launcher because another "
        "rank had ended first. `hpcrun why NAME` tells which.",
    ),
    (
        r"\bSIGABRT\b|core dumped|^terminate called after",
        "A process ended itself by SIGABRT (signal 6, exit code 134)",
        "A library gave up: the cause stands above, often a C++ exception or NCCL's watchdog after "
        "another rank had ended. `hpcrun why NAME` shows which rank was first.",
    ),
    (
        r"(?-i:\bCANCELLED\b)|job (?:was |got )?(?:cancelled|canceled|killed) by|Job step aborted"
        r"|slurmstepd: error: \*\*\* (?:STEP|JOB)",
        "The job or a step of it was cancelled",
        "By somebody (`sacct -j JOB -X -o State%30` tells the number of the user, `id NUMBER` the "
        "name), by Slurm, or by hpcrun, which ends the other ranks once one has failed: `hpcrun "
        "why NAME` tells which. `hpcrun requeue NAME` goes on from the newest checkpoint.",
    ),
)
# Those that more words have: what `why` knows goes before.
_OTHERS = (
    (
        r"\b(?:sbatch|squeue|sinfo|srun|scontrol)\W+(?:command )?not found"
        r"|No such file or directory: '(?:sbatch|srun)'",
        "Slurm's commands are not on this machine",
        "`hpcrun --on CLUSTER COMMAND` runs the command on a login node (`hpcrun help laptop`); "
        "`hpcrun run SPEC` needs no Slurm. Some sites have Slurm in a module: `module load slurm`.",
    ),
    (
        r"properly configured to use .?conda|conda init\b|conda activate.*\b(?:not|fail)",
        "conda activate does not work in a job",
        "A job reads no .bashrc. Name the Python of the environment, and nothing needs activation: "
        "`environment: {python: /home/me/miniconda3/envs/torch/bin/python}`. For variables that "
        "activation sets: `hpcrun help recipes`.",
    ),
    (
        r"MEM_PER_(?:CPU|GPU|NODE).*mutually exclusive",
        "Slurm's variables of another job are in the shell",
        "`unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE` where you type; in a spec "
        "`resources.mem` alone says it, without mem-per-cpu in `resources.sbatch`.",
    ),
    (
        r"variable \w+ expected, but not set"
        r"|KeyError: '(?:LOCAL_|SLURM_)?(?:RANK|WORLD_SIZE|PROCID|LOCALID)'"
        r"|(?:MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK)\W+(?:is )?not (?:set|defined|found)"
        r"|process group has not been initialized",
        "A process lacks the variables of torch.distributed",
        "hpcrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each rank, but "
        "with `framework: single` and `batch`: take those away, or start the ranks there by "
        "torchrun or srun. `hpcrun plan SPEC` says which it found (`hpcrun help frameworks`).",
    ),
    (
        r"unrecognized arguments|arguments? (?:are|is) required|invalid choice|Could not override"
        r"|not in struct|no such option|ConfigCompositionException|expected (?:one|at least) "
        r"argument|Extra keys? .*passed",
        "The program does not take the arguments that it gets",
        "`hpcrun plan SPEC` shows each rank's command: `args` as they are, then `config` as flags "
        "in the form that `flags` says (`--key=value`; Hydra's is `flags: key=value`).",
    ),
    (
        r"relative import",
        "A file of a package was started as a script",
        "`entry: [python, -m, package.module]` starts it as part of its package, "
        "`entry: package.module:function` a function in it; `code.root` has to hold the package.",
    ),
    (
        r"cannot import name|module '\S+' has no attribute|dtype size changed|NumPy 1\.x"
        r"|binary incompatib|compiled against (?:API|a different)|VersionConflict"
        r"|is required for a normal functioning|incompatible with",
        "Versions of packages do not fit each other",
        "`hpcrun why NAME` tells which packages changed since submission; install the version that "
        "the program wants into `environment.python`. `environment: {venv: frozen}` keeps what "
        "later runs have (`hpcrun help environments`).",
    ),
    (
        r"database is locked",
        "Several processes write one SQLite file",
        "On shared storage that fails. A search of hpcrun's needs no database: `sweep: {search: "
        "…}` (`hpcrun help sweeps`); Optuna's own wants its JournalStorage or a server.",
    ),
    (
        r"loss scale already at minimum|Attempted loss scale|gradient overflow",
        "Gradients are beyond the range of fp16",
        "Some skipped steps at the start are usual: the loss scale is being found. Where they go "
        "on, or it is at its minimum: `precision: bf16`, or a lower learning rate.",
    ),
    (
        r"\bORTE\b|\bPRTE\b|not enough slots|\borted\b|MPI_Init|MPI_ABORT|PMI2?_Init|PMIX?\b.*error"
        r"|mpi(?:run|exec)\W.*(?:error|fail|detected|not)",
        "MPI's ranks were not started as its library wants",
        "hpcrun starts them by srun, without mpirun: `entry: [./solver]` with `framework: mpi`; "
        "`resources.mpi` chooses among what `srun --mpi=list` shows. A script that has mpirun "
        "inside: `framework: batch` (`hpcrun help frameworks`).",
    ),
    (
        r"ssh: |Could not resolve hostname|Permission denied \(publickey|Host key verification"
        r"|kex_exchange|Too many authentication failures",
        "ssh does not reach the other machine",
        "`hpcrun --on CLUSTER` uses ssh as it is: `ssh CLUSTER` has to work first, so CLUSTER must "
        "be a host that `~/.ssh/config` knows, with a key that it accepts (`hpcrun help laptop`).",
    ),
    (
        r"(?-i:PermissionError|\bEACCES\b)|Permission denied",
        "A file may not be read, written or executed by you",
        "`ls -ld` on it and on the directories above tells who may. A script that is started "
        "directly needs `chmod +x`; what a group uses together, `group` and `umask` in the cluster "
        "profile (`hpcrun help sharing`).",
    ),
    (
        r"no module named|ModuleNotFoundError",
        "The Python of the job lacks a package",
        "`environment: {python: PATH}` names the Python that has it, by default the one that "
        "hpcrun runs in; else install it there: `PATH -m pip install PACKAGE`. `hpcrun check "
        "SPEC` looks before the queue (`hpcrun help environment`).",
    ),
    (
        r"GLIBC(?:XX)?_[\d.]+.? not found|Exec format error",
        "A program or library was built for another system",
        "The node's processor or its C library is another than where it was built: use a Python "
        "that was built for those nodes (`environment.python`), a container (`hpcrun help "
        "containers`), or nodes of one kind (`resources.constraint`).",
    ),
    (
        r"no kernel image|libcuda\.so|driver (?:version is insufficient|.*too old)|CUDA driver"
        r"|no CUDA-capable device|Found no NVIDIA driver"
        r"|No (?:CUDA )?GPUs? (?:are |is )?(?:available|found)"
        r"|cuda\.is_available|CUDA (?:initialization|unknown error)|cudaGetDeviceCount"
        r"|not compiled with CUDA|\bNVML\b|couldn't communicate with the NVIDIA driver",
        "torch, the driver and the GPU do not fit each other",
        "`hpcrun exec NAME nvidia-smi` shows the node's driver and the newest CUDA that it takes; "
        "torch in `environment.python` must be built for no newer, and for that GPU. Without "
        "libcuda or a GPU: does the job ask for one (`resources.gpus_per_node`)?",
    ),
    (
        r"illegal (?:memory access|instruction)|device-side assert|misaligned address"
        r"|CU(?:DNN|BLAS|FFT|SPARSE|SOLVER)_STATUS|unspecified launch failure",
        "A kernel on the GPU touched what it should not",
        "Mostly the program's: an index beyond a tensor or an embedding. `environment: "
        '{variables: {CUDA_LAUNCH_BLOCKING: "1"}}` makes the error stand where it arises. Where '
        "it follows one node, leave that out by `resources.exclude`. NOT_INITIALIZED and "
        "ALLOC_FAILED: mostly the GPU's memory is full.",
    ),
    (
        r"dev/shm|shared memory",
        "Shared memory of the node is too small or full",
        "Fewer or no workers of the DataLoader, smaller batches, or in the program "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`; `hpcrun exec NAME df -h "
        "/dev/shm` shows it while the run goes.",
    ),
    (
        r"DataLoader worker .*exited unexpectedly",
        "A worker process of the DataLoader ended",
        "Its own error stands above in the log (`hpcrun logs NAME --rank R`); where there is none "
        "the node's memory ran out mostly: fewer `num_workers`, or more `resources.mem`.",
    ),
    (
        r"command not found",
        "The job's shell does not find a program",
        "A job reads no .bashrc: `environment: {setup: [module load X]}` is run before its ranks, "
        "the path of a Python in `environment.python` needs no activation, and any other program "
        "can be named by its path.",
    ),
    (
        r"too many open files|\bEMFILE\b",
        "A process has as many files open as it may",
        "`environment: {setup: [ulimit -n 65536]}` raises that up to the node's own limit; fewer "
        "workers of the DataLoader need fewer.",
    ),
    (
        r"FileNotFoundError|No such file or directory",
        "A file is not where the program looks for it",
        "The job runs in a copy of the code: name data by their whole path (`hpcrun help "
        "directories`). Nodes see shared storage, not the login node's own disks.",
    ),
    (
        r"Read timed out|ConnectTimeout|ReadTimeout|Max retries exceeded|name resolution"
        r"|Network is unreachable|connection.{0,3}time(?:d )?.?out|HTTPSConnectionPool"
        r"|Could not resolve host|OfflineMode|LocalEntryNotFound|connect to .?https?:"
        r"|CERTIFICATE.VERIFY.FAILED|SSLError|CommError: Network|No route to host"
        r"|Connection refused|\bECONNREFUSED\b",
        "A node does not reach a server",
        "Many compute nodes have no way to the internet: download on the login node to shared "
        "storage, and set HF_HOME, HF_HUB_OFFLINE or the site's proxy (https_proxy) in "
        "`environment.variables`. Between ranks: the one that should listen has ended or not yet "
        "started (`hpcrun why NAME`); `hpcrun doctor --nodes` measures the links.",
    ),
    (
        r"Broken pipe|\bEPIPE\b|\bEOFError$|ConnectionResetError",
        "The process at the other end has ended",
        "Its own error stands above in the log, or in another rank's: `hpcrun why NAME` shows "
        "which was first. Of a DataLoader's worker it is mostly the node's memory.",
    ),
    (
        r"Unable to contact slurm controller|Socket timed out on send/recv|slurm_load_\w+ error"
        r"|Invalid job credential|Communication connection failure|Zero Bytes were transmitted"
        r"|Protocol authentication error|Munge",
        "Slurm itself does not answer",
        "Its controller is down or busy: `scontrol ping` tells, and those who run the site. Jobs "
        "that run go on; repeat the command later, `hpcrun submit` adds no run twice.",
    ),
    (
        r"(?-i:\bCF\b|\bCONFIGURING\b)",
        "Slurm starts or prepares the job's nodes",
        "It passes by itself, in minutes where nodes are switched on for it. `scontrol show job "
        "JOB` names them; where one does not come up, Slurm puts the job back into the queue.",
    ),
    (
        r"(?-i:\bCG\b|\bCOMPLETING\b)|\b(?:stuck|state|in) completing\b",
        "Slurm waits for the nodes of a job that has ended",
        "Processes end there, or the site's epilog runs; it passes by itself. A node where a "
        "process hangs on storage stays so until those who run the site free it.",
    ),
    (
        r"Requested node configuration|More processors requested|nodes? count specification"
        r"|Memory specification can ?not be|CPU count per node can ?not be",
        "No node has what the job asks for",
        "Lower `resources` (gpus_per_node, cpus_per_task, mem, nodes) or name another "
        "`resources.partition`: `hpcrun check SPEC` says which does not fit.",
    ),
    (
        r"Unable to open file|does not look like a batch script|no script was specified",
        "sbatch does not find, or take, the script",
        "hpcrun needs no script: `hpcrun submit SPEC` takes a YAML file, a Python script or a "
        "command, and `hpcrun init --from job.sh` makes a spec of an sbatch script.",
    ),
    # Whatever else is an error.
    (
        r"^(?:sbatch|srun|salloc|scontrol|slurmstepd): (?:error|fatal|warning): ",
        "A message of Slurm's",
        "Before submission `hpcrun check SPEC` asks Slurm whether it takes the job; afterwards "
        "`hpcrun why NAME` tells what became of it, `hpcrun logs NAME --stream batch` what Slurm "
        "wrote around it.",
    ),
    (
        r"(?-i:\b[A-Z]\w*(?:Error|Exception|Warning)\b(?:: .|$))"
        r"|^(?:\w+: )*(?:fatal|error|fatal error): |Traceback \(most recent"
        r"|\bexit(?:ed)?(?: with)?(?: exit)?[ -]?(?:code|status)\W*[1-9]|\bFAILED\W+[1-9]\d*:0",
        "An error of the program's own, or of its libraries",
        "`hpcrun why NAME` shows which rank failed first, with its traceback, and what to do; "
        "`hpcrun logs NAME --rank R` what it wrote before. Fix it, and `hpcrun submit SPEC` goes "
        "on with the code of now. Codes 2, 126 and 127: its arguments, a file that may "
        "not be executed, a program that is not found. Of hpcrun's own: `hpcrun help commands`.",
    ),
)
_REFUSED = re.compile(
    r"job submission failed|unable to allocate resources|invalid (?:account|partition|qos)"
    r"|accounting/QOS policy|time limit is invalid|invalid generic resource"
    r"|(?:QOS|Assoc)\w*Submit\w*Limit",
    re.IGNORECASE,
)
# A reason of Slurm's within a sentence: in parentheses, or of several words (MaxPool is none).
_REASON = re.compile(r"(?<=\()\w+|\b(?!M)\w*[a-z][A-Z]\w*")
# Words in small letters that are messages though they stand alone.
_SIGNAL_ALONE = re.compile(r"preempted|killed|segfault|sig[a-z]{3,4}")
# Where a number stands for a signal, and how programs that died are reported.
_SIGNAL = re.compile(
    r"\bsignal[\s:=(]*(\d+)|\b(?:ExitCode|FAILED|CANCELLED)\W+\d+:(\d+)\b", re.IGNORECASE
)
_CODE = re.compile(
    r"(?:\bexit(?:ed)?(?: with)?|code|status)[\s:=(]*(?:code|status)?[\s:=(]*(-?\d+)\b",
    re.IGNORECASE,
)


def explained(words: str) -> tuple[str, str, str] | None:
    """Return a message's title, its meaning, and the command that shows more; None if unknown."""
    if words == words.lower() and " " not in words and not _SIGNAL_ALONE.fullmatch(words):
        return None
    said = words.strip("() ")
    if "(" not in said and (told := _of_reasons([said])):
        return told
    words = _with_signal(words)
    if found := _first(_MESSAGES, words):
        return found
    if trouble := advice.known_trouble({"message": words}, "NAME", re.IGNORECASE):
        return "What the message means", f"{trouble}.", "hpcrun why NAME tells it of a run"
    if _REFUSED.search(words) and (place := refusals.where_to_look(words)):
        text = f"Look at {place}. `hpcrun check SPEC` asks Slurm before the queue does."
        return "Slurm refuses the job", text, "hpcrun help checks"
    return _first(_OTHERS, words) or _of_reasons(_REASON.findall(words))


def _of_reasons(names: Iterable[str]) -> tuple[str, str, str] | None:
    """Return the answer on the first name that is a reason of Slurm's; None without any."""
    for name in names:
        if (reason := pending_reason.in_words(name)) != name:
            return "Why a job waits", reason, "hpcrun status and hpcrun why have it of a run"
    return None


def _first(messages: tuple[tuple[str, str, str], ...], words: str) -> tuple[str, str, str] | None:
    for pattern, title, text in messages:
        if re.search(pattern, words, re.IGNORECASE):
            return title, text, "hpcrun help recovery"
    return None


def _with_signal(words: str) -> str:
    """Return a message with the name of the signal that a number in it stands for."""
    number = 0
    if hit := _SIGNAL.search(words):
        number = int(hit[1] or hit[2])
    elif hit := _CODE.search(words):
        code = int(hit[1])
        number = -code if code < 0 else code - 128
    return f"{words} {signal_name(number)}" if 0 < number < 65 else words
