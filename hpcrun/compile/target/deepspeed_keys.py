"""The keys that DeepSpeed 0.19.8 reads, block by block.

A test compares them with the installed DeepSpeed. It ignores a top-level key that it does not know,
and those in the blocks that it reads by hand (`LENIENT`); its pydantic blocks refuse them, but only
once the job runs.
"""

from __future__ import annotations

import re

VERSION = "0.19.8"


def table(text: str, shared: str = "") -> dict[str, frozenset[str]]:
    """Return name -> its words, and the ``shared`` ones, of lines ``name: word word …``."""
    found = re.findall(r"^([\w.]+):((?:.*\n)(?: .*\n)*)", text, re.MULTILINE)
    return {name: frozenset(f"{words} {shared}".split()) for name, words in found}


_PLAIN = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
managed_gradient_accumulation steps_per_print dump_state disable_python_gc disable_allgather
communication_data_type seq_parallel_communication_data_type prescale_gradients
gradient_predivide_factor gradient_allreduce_op gradient_clipping zero_allow_untested_optimizer
zero_force_ds_cpu_optimizer wall_clock_breakdown memory_breakdown
use_data_before_expert_parallelism dataloader_drop_last log_level vocabulary_size allgather_size
sequence_parallel_size data_parallel_size datastates_ckpt
"""
# A block's full key, and the keys that it may hold.
_BLOCKS = """
activation_checkpointing: partition_activations number_checkpoints contiguous_memory_optimization
    synchronize_checkpoint_boundary profile cpu_checkpointing
aio: block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds
autotuning: enabled fast results_dir exps_dir overwrite start_profile_step end_profile_step metric
    metric_path tuner_type tuner_early_stopping tuner_num_trials arg_mappings model_info
    model_info_path mp_size max_train_batch_size min_train_batch_size
    max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu
    num_tuning_micro_batch_sizes
autotuning.model_info: profile num_params hidden_size num_layers
bf16: enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads
    bf16_optimizer_states
checkpoint: tag_validation load_universal use_node_local_storage parallel_write
    checkpoint_serialization writer
comet: enabled samples_log_interval project workspace api_key experiment_name experiment_key online
    mode
comms_logger: enabled prof_all prof_ops verbose debug
compile: deepcompile autoep_non_moe free_activation free_activation_threshold offload_activation
    offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory debug_log
    offload_parameters sync_before_reduce sync_after_reduce sync_before_allgather
    sync_after_allgather keep_int_input_tensors keep_all_input_tensors passes
csv_monitor: enabled output_path job_name
data_efficiency: enabled seed data_sampling data_routing
data_types: grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules
expert_parallel: enabled autoep_size expert_tensor_parallel_size validate_folding_routing
    async_split_plan preset_model moe_layer_pattern expert_pattern router_pattern use_grouped_mm
    disable_triton_grouped_mm route_norm route_scale score_apply combine_impl row_weighting_impl
    gate_up_impl comm_backend comm_num_sm comm_qp_margin comm_max_tokens_per_rank num_expert_groups
    num_limited_groups score_func top_k load_balance_coeff routed_scaling_factor expert_w1 expert_w2
    expert_w3 num_experts_attr top_k_attr has_shared_experts shared_experts_pattern
    shared_experts_gate_pattern expert_activation
flops_profiler: enabled recompute_fwd_factor profile_step module_depth top_modules detailed
    output_file
fp16: enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis
    consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads
hybrid_engine: enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters
    tp_gather_partition_size enable_cuda_graph
optimizer: type params legacy_fusion
pipeline: stages partition seed_layers activation_checkpoint_interval pipe_partitioned
    grad_partitioned use_reentrant
scheduler: type params
tensor_parallel: dtype autotp_size tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend
    tensor_parallel tp injection_policy_tuple partition_config preset_model keep_module_on_host
    kernel_inject replace_with_kernel_inject
tensorboard: enabled output_path job_name
timers: throughput
torch_autocast: enabled dtype lower_precision_safe_modules
wandb: enabled group team project
weight_quantization: enabled num_bits q_type q_groups quantized_initialization post_init_quant
zero_optimization: stage contiguous_gradients reduce_scatter reduce_bucket_size
    use_multi_rank_bucket_allreduce allgather_partitions allgather_bucket_size overlap_comm
    compute_grad_norm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer
    zenflow sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload
    prefetch_bucket_size stage3_prefetch_bucket_size stage3_param_persistence_threshold
    param_persistence_threshold stage3_model_persistence_threshold model_persistence_threshold
    max_live_parameters stage3_max_live_parameters stage3_max_reuse_distance max_reuse_distance
    stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save
    module_granularity_threshold stage3_module_granularity_threshold
    use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential
    stage3_allgather_sequential stage3_gather_fp16_weights_on_model_save ignore_unused_parameters
    legacy_stage1 round_robin_gradients parameter_alignment zero_hpz_partition_size
    zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients
    memory_efficient_linear pipeline_loading_checkpoint override_module_apply
    log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module
zero_optimization.zenflow: topk_ratio select_strategy select_interval update_interval overlap_step
    offload auto_ratio full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch
zero_optimization.offload_param: device nvme_path buffer_count buffer_size max_in_cpu pin_memory
zero_optimization.offload_optimizer: device nvme_path buffer_count pin_memory pipeline_read
    pipeline_write fast_init ratio super_offload cpuadam_cores_perc
"""
BLOCKS = table(_BLOCKS)
BLOCKS["bfloat16"] = BLOCKS["bf16"]

# Blocks in which DeepSpeed ignores what it does not know, as it does at the top level.
_LENIENT = """
activation_checkpointing aio autotuning autotuning.model_info checkpoint data_efficiency data_types
expert_parallel flops_profiler optimizer pipeline scheduler timers torch_autocast
"""
LENIENT = frozenset(_LENIENT.split())

TOP_LEVEL = frozenset(_PLAIN.split()) | {name for name in BLOCKS if "." not in name}

_LEAVE_OUT = """
graph_harvesting progressive_layer_drop quantize_training sparse_attention
zero_optimization.mics_hierarchical_params_gather zero_optimization.zeropp_loco_param
"""
REMOVED: dict[str, str] = {
    "amp": "use fp16, bf16 or torch_autocast",
    "compression_training": "DeepSpeed no longer compresses models",
    "curriculum_learning": "use data_efficiency.data_sampling.curriculum_learning",
    "eigenvalue": "quantization by eigenvalues is gone",
    "elasticity": "give the batch sizes; hpcrun solves the rest",
    "nebula": "hpcrun writes checkpoints itself",
    "sparse_gradients": "embeddings made with sparse=True need no flag",
    "zero_optimization.mics_shard_size": "use zero_optimization.zero_hpz_partition_size",
    **dict.fromkeys(_LEAVE_OUT.split(), "leave it out"),
}
REMOVED_OPTIMIZERS = ("onebitadam", "onebitlamb", "zerooneadam")


def is_comment(name: str) -> bool:
    """Return whether a key is what people write for want of comments in JSON."""
    return name.startswith(("_", "//", "#")) or name.lower() in ("comment", "comments")


def is_key(key: tuple[str, ...]) -> bool:
    """Return whether DeepSpeed knows the key; below a block without a list, every key."""
    if not key or key[0] not in TOP_LEVEL:
        return False
    for length in range(1, len(key)):
        block = BLOCKS.get(".".join(key[:length]))
        if block is not None and key[length] not in block:
            return False
    return True
