"""The tables and keys of torchtitan's TOML: the last ones, before February 2026, and where older ones went."""

from __future__ import annotations

_LOADER = {"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"}
# Tables whose keys are checked; None: any key.
TABLES: dict[str, frozenset[str] | None] = {
    "job": frozenset({
        "config_file", "dump_folder", "description", "print_config", "save_config_file", "custom_config_module",
    }),
    "profiling": frozenset({
        "enable_profiling", "save_traces_folder", "profile_freq", "profiler_active", "profiler_warmup",
        "enable_memory_snapshot", "save_memory_snapshot_folder",
    }),
    "metrics": frozenset({
        "log_freq", "enable_tensorboard", "disable_color_printing", "save_tb_folder", "save_for_all_ranks",
        "enable_wandb",
    }),
    "model": None,  # models add their own
    "optimizer": frozenset({
        "name", "lr", "beta1", "beta2", "eps", "weight_decay", "implementation", "early_step_in_backward",
    }),
    "lr_scheduler": frozenset({"warmup_steps", "total_steps", "decay_ratio", "decay_type", "min_lr_factor"}),
    "training": frozenset({
        "dataset", "dataset_path", "local_batch_size", "global_batch_size", "seq_len", "max_norm", "steps",
        "enable_cpu_offload", "dtype", "mixed_precision_param", "mixed_precision_reduce", "gc_freq", "gc_debug",
        "dataloader",
    }),
    "parallelism": frozenset({
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "tensor_parallel_degree", "disable_loss_parallel", "enable_async_tensor_parallel", "pipeline_parallel_degree",
        "module_fqns_per_model_part", "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule",
        "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatch_size",
        "pipeline_parallel_expert_parallel_overlap", "context_parallel_degree", "context_parallel_load_balancer",
        "context_parallel_rotate_method", "expert_parallel_degree", "expert_tensor_parallel_degree",
        "expert_parallel_comm_backend",
    }),
    "checkpoint": frozenset({
        "enable", "enable_ft_dataloader_checkpoints", "folder", "interval", "initial_load_path",
        "initial_load_model_only", "initial_load_in_hf", "initial_load_in_hf_quantized", "last_save_model_only",
        "last_save_in_hf", "export_dtype", "async_mode", "keep_latest_k", "load_step", "exclude_from_loading",
        "enable_first_step_checkpoint", "create_seed_checkpoint", "load_only",
    }),
    "activation_checkpoint": frozenset({
        "mode", "selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget",
        "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug",
    }),
    "compile": frozenset({"enable", "components", "backend"}),
    "quantize": None,
    "comm": frozenset({
        "init_timeout_seconds", "train_timeout_seconds", "trace_buf_size", "save_traces_folder",
        "save_traces_file_prefix", "mode",
    }),
    "memory_estimation": frozenset({"enable", "disable_fake_mode"}),
    "fault_tolerance": None,
    "experimental": None,  # experiments add their own
    "validation": frozenset({
        "enable", "dataset", "dataset_path", "local_batch_size", "seq_len", "freq", "steps", "dataloader",
    }),
    "debug": frozenset({"seed", "deterministic", "deterministic_warn_only", "moe_force_load_balance"}),
}  # fmt: skip

# Older keys and the last name of each; "" where there is none.
MOVED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.enable_loss_parallel": "parallelism.disable_loss_parallel, turned around",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "experimental.enable_compiled_autograd": "",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_schedule_csv": "parallelism.pipeline_parallel_schedule_csv",
    "experimental.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "parallelism.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "parallelism.enable_compiled_autograd": "",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "checkpoint.interval_type": "",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "memory_estimation.enabled": "memory_estimation.enable",
    "metrics.enable_color_printing": "metrics.disable_color_printing, turned around",
    "metrics.rank_0_only": "metrics.save_for_all_ranks, turned around",
    "model.tokenizer_path": "model.hf_assets_path",
    "model.norm_type": "",
    "optimizer.fused": "optimizer.implementation",
    "job.print_args": "job.print_config",
    "job.use_for_integration_test": "",
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
}
