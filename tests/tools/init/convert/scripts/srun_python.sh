#!/bin/bash -l
#SBATCH --job-name=unet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4      # one for each GPU
#SBATCH --gres=gpu:4,nvme:100
#SBATCH --cpus-per-task=8
#SBATCH --time=12:30:00
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=end,fail
#SBATCH --exclude=node[3,7]
#SBATCH --constraint="a100&nvlink"
#SBATCH --exclusive

# hpcrun does this: export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
# hpcrun does this: export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
# hpcrun does this: export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
# hpcrun does this: echo "$WORLD_SIZE ranks, $MASTER_ADDR:$MASTER_PORT"

ml Python/3.11
eval "$(conda shell.bash hook)"
conda activate unet

mkdir -p logs
# hpcrun does this: srun --kill-on-bad-exit=1 python -u -m unet.train --batch-size 16 --betas 0.9 0.95 --name 'first try' data/cells
sh "$HPCRUN_RANKS" || exit
