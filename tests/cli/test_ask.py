"""What people ask is answered: their questions and words, those of other programs, and messages."""

from __future__ import annotations

import json
import re

import pytest

from hpcrun.cli import ask, asked_words, help
from tests.support.command import hpcrun

# What answers -> a question a line. The answer is a pattern of a passage's title and place.
ANSWERS = {
    r"Weights & Biases|tracking\.wandb": """
        wandb
        how do I add wandb
        weights and biases
        send my metrics to wandb
        wandb api key
        wandb project name
    """,
    r"tensorboard|TensorBoard": """
        tensorboard
        how do I use tensorboard
        tensorboard logs of a run
    """,
    r"mlflow|MLflow": """
        mlflow
        log to an mlflow server
    """,
    r"conda environment|hpcrun help recipes|environment\.(python|setup|venv)": """
        conda
        how do I use a conda env
        venv
        virtualenv
        uv
        activate my virtual environment
        which python does the job use
        miniconda
        source activate
    """,
    r"module load|environment\.setup|Modules": """
        module load
        modules
        load cuda module
        lmod
        run shell commands before training
    """,
    r"email|notify\.|Being told|told|Notifications": """
        email
        mail
        notify
        how do I get an email
        mail-type
        mail-user
        alert when a run fails
        tell me on slack
        notification when finished
    """,
    r"pending|waits|job wait": """
        pending
        why is my job pending
        why does my job not start
        job stuck in the queue
        how long until it starts
        PD
    """,
    r"torchrun": """
        torchrun
        how do I use 2 nodes with torchrun
        torchrun on several nodes
        torch.distributed.launch
        multi-node torchrun rendezvous
    """,
    r"resources\.nodes|Two nodes|max_nodes|number of nodes": """
        multi-node
        number of nodes
        nnodes
        use four nodes
    """,
    r"gpus.per.node|gpu_type|GPUs, CPUs|Two nodes": """
        gpus per node
        how many gpus
        gres
        ask for 8 gpus
    """,
    r"resources\.gpu_type|gpu_types": """
        gpu type
        a100 or h100
        which gpu type do I get
    """,
    r"resources\.mem\b|grow|more memory|GPUs, CPUs": """
        memory of a job
        ask for more memory
        --mem
    """,
    r"cpus_per_task|GPUs, CPUs": """
        cpus per task
        how many cpus
        number of cores
    """,
    r"resources\.time|time limit|max_time|GPUs, CPUs": """
        time
        walltime
        time limit
        timeout
        how long may a job run
    """,
    r"Change the time limit|hpcrun update": """
        how do I change the time limit of queued jobs
        change limit of a queued job
        extend the time of a pending job
        scontrol update timelimit
        renice
    """,
    r"jobs at a time|max_parallel|Sweeps|array": """
        array
        how do I limit to 4 jobs at a time
        at most 4 jobs at once
        array%4
        concurrent jobs
        max_parallel
    """,
    r"limit|max_": """
        limit
    """,
    r"YAML|experiment\.yaml|Specs|spec": """
        yaml
        which keys may a spec have
        spec reference
        config file format
    """,
    r"Questions": """
        faq
        questions
    """,
    r"errors and messages|why|what they raise": """
        errors
        what does this error mean
        why did my run fail
        why did it die
    """,
    r"checkpoint": """
        where are my checkpoints
        checkpoint location
        how often are checkpoints saved
        keep more checkpoints
        where does it save the model
    """,
    r"resume|go on|requeue|chains|recovery|weights of another": """
        resume
        continue from last checkpoint
        resume training after a crash
        go on from step 1000
        restart from checkpoint
    """,
    r"weights|initialize_from": """
        how do I start from another run's weights
        initialize from a pretrained checkpoint
        fine-tune from another run
        load weights of another run
    """,
    r"hpcrun weights|Weights|export": """
        export weights as safetensors
        convert checkpoint to hugging face
    """,
    r"delete|clean|Deleting|Delete": """
        delete
        how do I delete old runs
        remove an experiment
        free disk space
        clean up old checkpoints
    """,
    r"Stop everything|cancel": """
        how do I stop everything
        cancel all my jobs
        scancel
        kill a run
        stop a run
    """,
    r"Rerun|requeue|only|fail": """
        rerun failed
        submit only failed runs again
        retry failed jobs
        restart failed runs
    """,
    r"log": """
        tail log
        where is the log of rank 3
        follow the output
        stdout of a job
        see what rank 0 printed
        grep in all logs
    """,
    r"cost|price": """
        how much did it cost
        gpu hours used
        price of a run
        budget
    """,
    r"GPU utilisation|screen|telemetry|hpcrun top|exec": """
        how do I see gpu utilisation
        gpu utilization
        nvidia-smi
        is my gpu busy
        monitor a run live
    """,
    r"Share|group|Sharing|colleague|Export|With colleagues": """
        how do I share results with my group
        let colleagues see my runs
        group permissions
    """,
    r"DeepSpeed|deepspeed": """
        how do I use my own deepspeed json
        deepspeed config
        ds_config.json
        zero stage 3
    """,
    r"node dies|When runs fail|node|recovery": """
        what happens when a node dies
        node failure
        a node crashed
        exclude a bad node
    """,
    r"sweep|repeat|seed|hyperparameter": """
        how do I sweep over seeds
        hyperparameter search
        grid search
        sweep over learning rates
        random search
    """,
    r"without slurm|without a cluster|local|hpcrun run": """
        how do I run without slurm
        run on my laptop
        try it locally first
        debug locally
    """,
    r"list|args|flags|argument": """
        how do I pass a list as an argument
        command line arguments of my script
        argparse flags
    """,
    r"flags|[Hh]ydra|key=value": """
        hydra
        hydra overrides
    """,
    r"scratch|directories|own disk|TMPDIR": """
        scratch
        local ssd of the node
        copy data to the node first
        TMPDIR
    """,
    r"torch|framework": """
        pytorch
        pytorch lightning
        which frameworks work
        huggingface trainer
        accelerate
    """,
    r"preempt|stop": """
        preempt
        preemption
        save before preemption
        signal before the time limit
    """,
    r"memory|oom|out_of_memory": """
        oom
        out of memory
        gpu memory
        does it fit in memory
    """,
    r"NCCL|nccl|fabric|adapters|InfiniBand": """
        nccl
        infiniband
        NCCL_SOCKET_IFNAME
        which network interface is used
        NCCL_DEBUG
    """,
    r"[Cc]ontainer|image|apptainer|Apptainer": """
        docker
        singularity
        apptainer image
        run in a container
        enroot pyxis
    """,
    r"partition": """
        partition
        which partition
        change partition
    """,
    r"account|qos": """
        account
        qos
        charge another project
    """,
    r"depends_on|Chains|chain|From one run|another": """
        run one job after another
        dependency between experiments
        afterok
    """,
    r"hang|stacks": """
        hang
        training hangs
        my run is stuck
        stack traces of ranks
    """,
    r"shell|exec|inside": """
        ssh to the node
        open a shell on the node
        attach to a running job
        run nvidia-smi beside a rank
    """,
    r"report": """
        html report
        plot the loss curves
    """,
    r"profil|training slow|mfu": """
        profile a training step
        mfu
        why is training slow
    """,
    r"estimat": """
        how long will it take
        will it fit before I submit
    """,
    r"secret": """
        secrets
        where do I put my api token
        huggingface token
    """,
    r"(default|site).*|Profile|profile|clusters": """
        cluster profile
        site-wide defaults
        describe our cluster
    """,
    r"code|frozen|Code": """
        does it copy my code
        uncommitted changes
        exclude files from the snapshot
    """,
    r"completion": """
        tab completion
        bash completion
    """,
    r"sbatch": """
        convert my sbatch script
        extra sbatch options
        #SBATCH
    """,
    r"from python|help python": """
        submit from python
        python api
        notebook
    """,
    r"results|metrics|hyperparameter|diff": """
        compare results of runs
        best run of a sweep
        metrics as csv
        accuracy table
    """,
    r"export|archive": """
        share runs as an archive
    """,
    r"root|Root": """
        where are experiments stored
        change the root directory
        HPCRUN_ROOT
    """,
    # What a new user asked, and what others of the field may.
    r"sweep|multirun": """
        multirun
        --multirun
        multi-run
    """,
    r"boolean|^flags": """
        argparse booleans
        pass a boolean flag
    """,
    r"flags|list|argument": """
        argparse
    """,
    r"[Ss]weep|[Hh]yperparameter|Bayes": """
        bayes
        bayesian optimisation
    """,
    r"[Ff]iles|inode|quota": """
        inode
    """,
    r"sweeps": """
        wandb sweep yaml
        W&B sweep
    """,
    r"sweeps|wandb agent": """
        wandb agent
    """,
    r"config group": """
        hydra config group
    """,
    r"launcher|Hydra": """
        hydra launcher
    """,
    r"[Pp]artition": """
        use a different partition for one run
    """,
    r"staging|own disk": """
        copy dataset to local scratch
    """,
    r"csv|hpcrun results": """
        export csv of results
    """,
    r"[Gg]lossary": """
        what is a rank
    """,
    r"hpcrun results|Best run": """
        best run
    """,
    r"quota|inode": """
        too many small files inodes
    """,
    r"confirm_above|students": """
        limit what students can use
    """,
    r"With colleagues|left the group": """
        user left the group, take over runs
    """,
    r"all-users|who is running what": """
        who is running what on the cluster
    """,
    r"With colleagues|all-users|Runs of another user": """
        see runs of another user
    """,
    r"code|git|version": """
        which version of code did run 3 use
    """,
    r"[Uu]pgrade": """
        upgrade hpcrun
    """,
    r"[Uu]ninstall": """
        uninstall
    """,
    r"3\.9 enough": """
        python 3.9
    """,
    r"preempt": """
        preemptable partition
    """,
    r"what is queued": """
        change learning rate of queued run
    """,
    r"hpcrun note|Tags, notes|run.notes": """
        add note to a run
    """,
    r"shell|node of a running": """
        log in to the node
    """,
    r"[Pp]recision|bf16": """
        bf16
    """,
    r"[Pp]recision": """
        mixed precision training
    """,
    r"help deepspeed\b|batch triple": """
        gradient accumulation
    """,
    r"[Ss]chedul|[Oo]ptimizers": """
        learning rate schedule with warmup
    """,
    r"LoRA|help jobs": """
        train a lora
    """,
    r"FSDP|[Ff]rameworks|[Pp]arallelism": """
        fsdp
    """,
    r"[Pp]arallelism|tensor": """
        tensor parallel
    """,
    r"help data\b|order|[Dd]ata": """
        does shuffling change after a restart
    """,
    r"object.stor": """
        save checkpoints to s3
    """,
    r"number of (ranks|nodes|GPUs)|resize|max_nodes|universal|min_nodes": """
        change the number of gpus after a restart
    """,
    r"spare": """
        spare nodes
    """,
    r"exclude|[Bb]ad nodes|suspects": """
        blacklist a node
    """,
    r"constraint": """
        --constraint
    """,
    r"resources\.sbatch|exclusive": """
        --exclusive
    """,
    r"reservation": """
        reservation
    """,
    r"rename|Tags, notes and names": """
        rename an experiment
    """,
    r"on_spike|spike|loss diverges": """
        loss spike
    """,
    r"results": """
        latex table for my paper
    """,
    r"repeat|over-repeats|results|Sweep over seeds": """
        average over seeds
    """,
    r"hpcrun diff": """
        compare two runs
    """,
    r"extendable|[Cc]hain|steps": """
        train for more epochs than before
    """,
    r"keep_best|fewer kept|Checkpoints": """
        keep only the best checkpoint
    """,
    r"proxy|A node does not reach|offline|network on": """
        compute nodes have no internet
    """,
    r"hpcrun plan|dry": """
        dry run
    """,
    r"hpcrun plan|The same on Slurm": """
        see the sbatch script before submitting
    """,
    r"json|machine": """
        json output for scripts
    """,
    r"[Ee]xit codes": """
        exit codes of commands
    """,
    r"schema|Specs \(|editor": """
        vscode autocomplete of yaml
    """,
    r"[Rr]oles": """
        actor and learner reinforcement learning
    """,
    r"[Ee]xtending|tracker of|A tracker": """
        write my own tracker
    """,
    r"doctor|Examining": """
        measure network bandwidth between nodes
    """,
    r"[Tt]un|What fits": """
        find the largest batch size that fits
    """,
    r"evaluat|[Rr]oles": """
        evaluate checkpoints while training
    """,
    r"extends|Composition|[Ss]pecs": """
        share settings between yaml files
    """,
    r"[Ll]aptop": """
        submit from my mac
    """,
    r"estimate|Estimat": """
        will a 7b model fit on 4 gpus
    """,
    r"max_(attempts|restarts|failures)|recovery|When runs fail|limit": """
        how many times does it restart
    """,
    r"venv|[Ee]nvironment|frozen": """
        install packages at submission so they do not change
    """,
    r"training slow|data|profil|workers": """
        gpu is idle, data loading is slow
    """,
    r"hpcrun requeue": """
        what does requeue do
    """,
    # Pasted as they were seen.
    r"^Why a job waits": """
        my job waits since 2 days, why (QOSGrpGRES)
        why is my job pending (AssocGrpGRES)
        nodes reserved for maintenance, job does not start: ReqNodeNotAvail
        QOSMaxGRESPerUser
        ReqNodeNotAvail, Reserved for maintenance
        (QOSMaxCpuPerUserLimit)
        AssocGrpGRES
        (Priority)
        (Resources)
        PartitionTimeLimit
        JobHeldUser
        DependencyNeverSatisfied
        BeginTime
    """,
    r"^The memory of a GPU ran out": """
        RuntimeError: CUDA error: out of memory
        NCCL WARN Cuda failure 'out of memory'
        cuda oom
        ran out of memory on the GPU
        oom on gpu
        HIP out of memory. Tried to allocate
        hipErrorOutOfMemory
        CUDA out of memory. Tried to allocate
        torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
        RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate
    """,
    r"^The memory of a node ran out": """
        RuntimeError: DefaultCPUAllocator: can't allocate memory
        slurmstepd: error: Detected 1 oom_kill event
        slurmstepd: error: Detected 2 oom-kill event(s) in StepId=12.0
        OUT_OF_MEMORY
        MemoryError: Unable to allocate 12.0 GiB
    """,
    r"^The job reached its time limit": """
        State=TIMEOUT
        DUE TO TIME LIMIT
        slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-28T00:00:00 DUE TO TIME LIMIT ***
        TIMEOUT
    """,
    r"^Slurm gave its nodes": """
        preempted
        what does preemption mean
        DUE TO PREEMPTION
        PREEMPTED
    """,
    r"^A process that torchrun": """
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError
        torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated
    """,
    r"^What the message means": """
        [rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)
        Bus error
        The server socket has failed to listen on any local network address
        port already in use
        port 29500 is already in use
        exit code 135
        RuntimeError: unable to open shared memory object
        NCCL WARN Call to ibv_create_qp failed
        Address already in use
        OSError: [Errno 116] Stale file handle
        OSError: [Errno 28] No space left on device
        no space left on device
        address already in use
        bus error
        OSError: [Errno 122] Disk quota exceeded
        ncclSystemError: System call (e.g. socket, malloc) or external library call failed
        NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus
        RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error
        bad interpreter: /bin/bash^M: bad interpreter
        ImportError: libcudart.so.12: cannot open shared object file: No such file or directory
        undefined symbol: ncclCommRegister
        symbol lookup error: /opt/lib/libnccl-net.so: undefined symbol: ibv_query_port
        OSError: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found
        torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients
        The client socket has timed out after 600s while trying to connect to (n1, 29500)
        huggingface_hub.errors.GatedRepoError: 401 Client Error
        HTTPError: 403 Client Error: Forbidden for url
        sbatch: error: Batch script contains DOS line breaks
        CUDA error: invalid device ordinal
        ncclInvalidUsage: Duplicate GPU detected
        NCCL WARN Bootstrap : no socket interface found
        torch.distributed.elastic.rendezvous.api.RendezvousConnectionError
        RuntimeError: Error(s) in loading state_dict for Model
        _pickle.UnpicklingError: invalid load key
        OSError: [Errno 5] Input/output error
        OpenBLAS blas_thread_init: pthread_create failed
        Error building extension 'fused_adam'
        wandb: ERROR api_key not configured (no-tty)
    """,
    r"^Slurm refuses the job": """
        Batch job submission failed: Invalid account or account/partition combination specified
        sbatch: error: Batch job submission failed: Invalid qos specification
        srun: error: Unable to allocate resources: Invalid partition name specified
        Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)
        Requested time limit is invalid (missing or exceeds some limit)
        Invalid generic resource (gres) specification
        Unable to allocate resources: Invalid feature specification
        sbatch: error: QOSMaxSubmitJobPerUserLimit
        Batch job submission failed: Access/permission denied
    """,
    r"^A worker process of the DataLoader": """
        RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly
    """,
    r"^The job's shell": """
        conda: command not found
        bash: line 1: module: command not found
        torchrun: command not found
    """,
    r"^A process was killed by SIGKILL": """
        exit code 137
        signal 9 SIGKILL
        Killed
        srun: error: n1: task 0: Exited with exit code 137
        exitcode  : -9 (pid: 12)
        State FAILED ExitCode 0:9
    """,
    r"^A process was killed by SIGSEGV": """
        Segmentation fault
        exit code 139
        segfault
    """,
    r"^A node does not reach": """
        error: connection timeout
        urllib3 ConnectTimeout timeout=10
        Read timed out huggingface.co
    """,
    r"^ssh does": """
        Permission denied (publickey)
        ssh: Could not resolve hostname cluster
    """,
    r"^A file may not": """
        PermissionError: [Errno 13] Permission denied: '/data'
        permission denied when writing
    """,
    r"^A file is not": """
        FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'
    """,
    r"^The Python of the job": """
        No module named 'deepspeed'
    """,
    r"^A program or library was built": """
        Exec format error
        GLIBC_2.34 not found
    """,
    r"^torch, the driver": """
        no kernel image is available for execution on the device
        libcuda.so.1: cannot open shared object file
        The NVIDIA driver on your system is too old
        torch.cuda.is_available() returns False
        RuntimeError: No CUDA GPUs are available
        Failed to initialize NVML: Driver/library version mismatch
    """,
    r"^A kernel on the GPU": """
        CUDA error: an illegal memory access was encountered
        CUBLAS_STATUS_EXECUTION_FAILED
    """,
    r"^A process has as many files": """
        OSError: [Errno 24] Too many open files
    """,
    r"^Slurm itself": """
        Unable to contact slurm controller (connect failure)
        Socket timed out on send/recv operation
    """,
    r"^No node has": """
        Requested node configuration is not available
        More processors requested than permitted
    """,
    r"^sbatch does not find": """
        Unable to open file job.sh
    """,
    r"^Slurm waits": """
        job stuck in CG
    """,
    r"^Slurm lost": """
        NODE_FAIL
    """,
    r"^NCCL's watchdog": """
        how do I prevent a timeout of NCCL
    """,
    r"^Early stopping": """
        early stopping
    """,
    r"^Stop jobs at night": """
        stop all jobs at night
        pause a job over night
    """,
    r"^Kill a single run|hpcrun cancel": """
        kill a single run
        stop one job
    """,
    r"^Start later": """
        --begin
        --hold
    """,
    r"^Where is the output": """
        where does the output go
        where are the logs
        where is the slurm-123.out file
    """,
    r"^Resume from a": """
        resume from a checkpoint of another experiment
    """,
    r"^Change the root": """
        change the root
        move my runs to another directory
        my home directory is too small
    """,
    r"^Set an environment": """
        set an environment variable
        HF_HOME
        proxy for compute nodes
    """,
    r"^My loss|on_nan": """
        my loss diverges
    """,
    r"^How long until it finishes": """
        how long until it finishes
    """,
    r"^How much memory": """
        sacct how much memory did my job use
    """,
    r"[Pp]rofile": """
        profile pytorch
    """,
    r"^Jupyter": """
        jupyter notebook
        salloc interactive
    """,
    r"quota": """
        who uses my quota
    """,
    r"^On my workstation": """
        run on two gpus of my workstation
    """,
    r"^Raise a running": """
        raise time limit of running job
    """,
    r"^There is no key sweep.max_paralel": """
        sweep.max_paralel
    """,
    r"^There is no key checkpoint.foo": """
        checkpoint.foo
    """,
    r"^resources.sbatch.gres, in": """
        resources.sbatch.gres
    """,
    r"^A key of DeepSpeed": """
        train_batch_size
        zero_optimization
        deepspeed.zero_optimization.stage
    """,
    # Messages as users of Slurm, torch and others paste them, and what help desks are asked.
    r"^The job or a step of it was cancelled": """
        CANCELLED by 1001
        job cancelled by admin
        srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
    """,
    r"^Slurm lost a node|^Slurm starts": """
        BOOT_FAIL
        job in state CF
    """,
    r"^Slurm's commands|^Slurm's variables": """
        sbatch: command not found
        srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.
    """,
    r"^sbatch does not find, or take": """
        sbatch: error: This does not look like a batch script
    """,
    r"^Versions of packages|^A file of a package": """
        ImportError: cannot import name 'foo' from 'transformers'
        numpy.dtype size changed, may indicate binary incompatibility
        ImportError: attempted relative import with no known parent package
    """,
    r"^A process lacks the variables": """
        MASTER_ADDR not set
        ValueError: Default process group has not been initialized
    """,
    r"^The program does not take": """
        train.py: error: unrecognized arguments: --local_rank=0
        omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct
    """,
    r"^conda activate does not work": """
        CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'
    """,
    r"^Several processes write": """
        sqlite3.OperationalError: database is locked
    """,
    r"^MPI's ranks|^The process at the other|^Gradients are beyond": """
        There are not enough slots available in the system
        BrokenPipeError: [Errno 32] Broken pipe
        OVERFLOW! Skipping step. Attempted loss scale
    """,
    r"^An error of the program's own": """
        RuntimeError: Expected all tensors to be on the same device
        exit code 1
    """,
    r"^Variables of a rank|What every rank gets": """
        CUDA_VISIBLE_DEVICES
        all processes use gpu 0
        how to get world size
    """,
    r"^Log out, close": """
        keep job running after logout
        can i close my laptop
    """,
    r"^Partitions, free": """
        which gpus are free
        list partitions
    """,
    r"^Include another YAML|^Copy results": """
        override from command line
        copy results to my laptop
    """,
    r"^recovery\.requeue|no restart|max_failures": """
        disable auto requeue
        do not restart on failure
    """,
    r"^Resume by itself": """
        job longer than max walltime
        run forever until done
    """,
    r"^search\.prune|^search\.more|^Hyperparameter|hpcrun search": """
        asha
        optuna with multiple objectives
        ray tune
    """,
    r"Many small runs|pack": """
        pack several jobs on one node
    """,
    r"^resources\.(time|partition|gpus_per_node|ntasks_per_node)": """
        time format days hours
        use more than one partition
        use cpu only no gpu
        ntasks-per-node
    """,
    r"^checkpoint\.(every|keep_best)|frequent saves": """
        save checkpoint every 30 minutes
        get the best checkpoint
    """,
    r"[Ww]eights": """
        zero_to_fp32.py
        upload model to hugging face hub
    """,
    r"^Same run": """
        experiment already exists
    """,
    r"^Kill a single|hpcrun cancel": """
        how to cancle a job
    """,
    r"[Tt]ensorBoard": """
        tensorbord
    """,
    # A question that has a word of a message, or a reason within it.
    r"shrink_micro_batch|smaller micro": """
        make batch size smaller automatically if oom happens
    """,
    r"^Limit to 4 jobs": """
        submit 200 runs but only 10 running at the same time
    """,
    r"[Ss]weep|search": """
        run the same script with 5 different learning rates
    """,
    r"^recovery.requeue": """
        how do I turn off automatic restarts
    """,
    r"^An error of the program's own, ": """
        fatal: detected dubious ownership in repository at '/shared/code'
    """,
}
QUESTIONS = [
    (question, pattern)
    for pattern, lines in ANSWERS.items()
    for question in map(str.strip, lines.strip().splitlines())
]
PAGES = help.pages()


def _place(question: str, pattern: str) -> int | None:
    """The first place of an answer; None where it is not among the first three."""
    found = ask.answers(question, PAGES, 3)
    shown = [f"{one.title} ({one.where})" for one in found]
    hits = (place for place, one in enumerate(shown, 1) if re.search(pattern, one, re.IGNORECASE))
    return next(hits, None)


def test_what_people_ask_is_answered() -> None:
    places = {question: _place(question, pattern) for question, pattern in QUESTIONS}
    assert len(places) >= 500
    missed = [question for question, place in places.items() if place is None]
    assert len(missed) <= 0.05 * len(places), missed
    later = [question for question, place in places.items() if place and place > 1]
    assert len(later) + len(missed) <= 0.2 * len(places), later


def test_a_key_is_explained_where_it_is_typed_as_it_stands() -> None:
    told = hpcrun("help", "resources.time").stdout
    assert told.startswith("resources.time  (hpcrun help specs)")
    assert "by default 01:00:00" in told.splitlines()[1]


def test_the_best_answer_is_shown_whole_and_others_in_a_line() -> None:
    told = hpcrun("help", *["how", "do", "I", "use", "a", "conda", "env"]).stdout
    first, second, *_ = told.split("\n\n")
    assert "environment: {python: /home/me/miniconda3" in first
    assert "](" not in told, "addresses of links"
    assert len(second.splitlines()) == 2


def test_what_was_found_is_json_too() -> None:
    (found, *_) = json.loads(hpcrun("help", "--json", "wandb").stdout)
    assert found.keys() == {"title", "text", "where", "names"}
    assert found["where"] == "hpcrun help recipes"


def test_lists_pages_and_commands_are_json_too() -> None:
    names = {one["name"] for one in json.loads(hpcrun("help", "--json").stdout)}
    assert {"sweeps", "submit"} <= names
    assert json.loads(hpcrun("help", "specs", "--json").stdout)["text"].startswith("# Specs")
    assert "Usage: hpcrun list" in json.loads(hpcrun("help", "list", "--json").stdout)["text"]


def test_nothing_is_said_to_be_found_where_no_page_has_a_word() -> None:
    told = hpcrun("help", "xylophone")
    assert told.returncode == 2
    assert "nothing that hpcrun says has a word of 'xylophone'" in told.stderr
    assert "hpcrun help lists all" in told.stderr
    told = hpcrun("help", "--json", "xylophone")
    assert (told.stdout, json.loads(told.stderr)["error"]["exit_code"]) == ("", 2)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("what is a rank", "glossary"),
        ("What are warm ranks?", "glossary"),
        ("what does requeue do", "requeue"),
        ("what is resources.time", "specs"),
        ("w&b sweep", "readme"),
        ("log in to the node", "questions"),
    ],
)
def test_a_word_that_is_asked_for_is_explained_first(words: str, place: str) -> None:
    assert ask.answers(words, PAGES, 1)[0].where == f"hpcrun help {place}"


def test_a_row_that_goes_on_has_the_name_of_the_one_above() -> None:
    table = "# T\n\n| from | a | b |\n|---|---|---|\n| Hydra | `x` | X |\n| | `yonder` | Y |\n"
    (found, *_) = ask.answers("yonder", {"t": table})
    assert (found.title, found.text) == ("T: Hydra `yonder`", "Y")


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("chekpoint evry", "checkpoint.every"),
        ("tensorbord", "Add TensorBoard, MLflow"),
        ("how to cancle one job", "Kill a single run, stop one job"),
        ("learning rate warm up", "Optimizers and learning rates: Schedules"),
        ("ntasks-per-node", "resources.ntasks_per_node"),
        ("--mem", "resources.mem"),
        ("hang_after", "recovery.hang_after"),
    ],
)
def test_words_that_are_written_otherwise_are_understood(words: str, title: str) -> None:
    assert title in [one.title for one in ask.answers(words, PAGES, 2)]


def test_what_is_asked_for_by_other_words_is_there() -> None:
    titles = {one.title for one in ask.passages(PAGES)}
    assert set(asked_words.ASKED_FOR) <= titles


@pytest.mark.parametrize("words", ["", "?", "a" * 10_000, "[[", "\x1b[31m", "é", "the"])
def test_odd_words_do_no_harm(words: str) -> None:
    assert ask.answers(words, PAGES) == [] or words == "the"


def test_what_would_end_much_is_not_said_first_to_who_asked_for_less() -> None:
    asked = ("early stopping", "stop all jobs at night", "kill a single run", "stop one job")
    for words in asked:
        (first, *_) = ask.answers(words, PAGES, 1)
        assert first.title != "Stop everything", words


@pytest.mark.parametrize(
    "words", [["--gres=gpu:4"], ["--mem"], ["--time"], ["srun", "--pty", "-N", "2"]]
)
def test_options_of_others_are_words(words: list[str]) -> None:
    told = hpcrun("help", *words)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    "words", ["exit code 1", "exit code 3", "connection timeout=10", "timeout"]
)
def test_numbers_and_timeouts_of_others_are_no_end_of_a_job(words: str) -> None:
    titles = [one.title for one in ask.answers(words, PAGES, 1)]
    assert not [one for one in titles if one.startswith(("A process was", "The job reached"))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("why is my job pending (Priority)", "Priority: waits behind"),
        ("squeue says (ReqNodeNotAvail, UnavailableNodes:n1)", "ReqNodeNotAvail: a node"),
        ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail, Reserved for m"),
        ("my program uses MinMaxScaler and MaxPool", ""),
        ("which Priority has a job", ""),
    ],
)
def test_a_reason_within_a_sentence_is_explained(words: str, told: str) -> None:
    (first, *_) = ask.answers(words, PAGES, 1)
    assert (first.title == "Why a job waits") == bool(told)
    assert first.text.startswith(told)
