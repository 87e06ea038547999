#!/bin/bash
# Two nodes, one torchrun on each; the first one's address is asked for.
#SBATCH -J ddp-two-nodes
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH -c 32
#SBATCH --mem=200G
#SBATCH -t 0-06:00
#SBATCH -p gpu
#SBATCH -A physics
#SBATCH -o logs/%x-%j.out

# hpcrun does this: hosts=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
# hpcrun does this: first=${hosts[0]}
# hpcrun does this: first_ip=$(srun -N1 -n1 -w "$first" hostname -I | awk '{print $1}')
# hpcrun does this: echo "rendezvous at $first_ip"

module purge
module load cuda/12.4 nccl
source venv/bin/activate
export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=ib0
export OMP_NUM_THREADS=8

# hpcrun does this: srun torchrun \
# hpcrun does this:     --nnodes=$SLURM_NNODES \
# hpcrun does this:     --nproc_per_node=4 \
# hpcrun does this:     --rdzv_id=$SLURM_JOB_ID \
# hpcrun does this:     --rdzv_backend=c10d \
# hpcrun does this:     --rdzv_endpoint="$first_ip:29500" \
# hpcrun does this:     train.py --epochs=20 --lr=3e-4 --amp --data=/data/imagenet
sh "$HPCRUN_RANKS" || exit
